import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.hardware import accelerators
from simulator.job import Precision
from simulator.metrics import mfu, model_flops_per_s_per_gpu, peak_flops, tokens_per_s_per_gpu
from simulator.models import model


def test_published_row() -> None:
    """Megatron-Bridge performance-summary-archive.md, Llama-3-70B FP8 on 64 H100: 1,602 tokens/s, 719 TFLOP/s."""
    speed = tokens_per_s_per_gpu(10.23, gbs=128, seq_len=8192, n_gpus=64)
    assert speed == pytest.approx(1602, rel=1e-3)
    flops = model_flops_per_s_per_gpu(speed, model("llama-3-70b"), 8192)
    assert flops == pytest.approx(719e12, rel=2e-3)
    peak = peak_flops(accelerators()["H100-SXM5-80GB"], Precision.FP8_TENSORWISE)
    assert mfu(flops, peak) == pytest.approx(0.3636, rel=2e-3)


@pytest.mark.parametrize("name", accelerators())
def test_peaks_follow_the_number_format(name: str) -> None:
    part = accelerators()[name]
    peaks = peak_flops(part, np.array(list(Precision)))
    assert peaks.shape == (len(Precision),)
    assert peaks[Precision.BF16] == peaks[Precision.FP16] == part.peak_bf16_flops
    assert np.all(peaks[[Precision.FP8_DELAYED, Precision.FP8_BLOCKWISE, Precision.MXFP8]] == part.peak_fp8_flops)
    assert peaks[Precision.NVFP4] == part.peak_fp4_flops


@given(st.floats(1e-3, 1e5), st.integers(1, 10_000), st.integers(1, 2**20), st.integers(1, 10_000))
def test_speed_scales_with_work_and_inversely_with_time(step: float, gbs: int, seq: int, gpus: int) -> None:
    speed = tokens_per_s_per_gpu(np.array([step, 2 * step]), gbs, seq, gpus)
    assert speed[0] == pytest.approx(2 * speed[1])
    assert speed[0] * gpus * step == pytest.approx(gbs * seq)


@given(st.sampled_from(sorted(accelerators())), st.floats(1e-6, 1.0))
def test_mfu_is_a_share_of_the_peak(name: str, share: float) -> None:
    peak = accelerators()[name].peak_bf16_flops
    assert 0 < mfu(share * peak, peak) <= 1


def test_mfu_without_a_peak_is_refused() -> None:
    peak = peak_flops(accelerators()["A100-SXM4-80GB"], Precision.FP8_DELAYED)
    with pytest.raises(ValueError, match="number format"):
        mfu(1e14, peak)
