"""Kernel constants: the shipped file, its round trip, and fits that find the constants of synthetic measurements."""

import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.calibration.kernel_tables import FILES, fit_kernel_tables
from simulator.hardware import accelerators
from simulator.job import Precision
from simulator.kernel_tables import entry, kernel_tables, parse, to_json
from simulator.kernels import fitted_rates, gemm_seconds, weight_gradient_seconds

H100 = accelerators()["H100-SXM5-80GB"]
TRUTH = {
    "gemm": {"eta": 0.7, "k0": 150.0, "waves": 0.1, "eta_m": 0.9, "eta_cast": 0.5, "tau_us": 8.0},
    "grouped": {"rows": 40.0, "eta_m": 0.8},
    "attention": {"eta": 0.6, "d0": 30.0, "fill": 0.8, "io": 1.5, "tau_us": 12.0},
    "collective": {"rate": 0.8, "loss": 0.3, "latency_us": 5.0, "step_us": 1.5, "ramp_us": 20.0},
    "dispatch": {"gb_s": 240.0, "latency_us": 35.0, "ramp_us": 10.0},
}


def noisy(seconds, rng):
    return np.asarray(seconds) * np.exp(0.02 * rng.standard_normal(len(seconds)))


def rows(rng, count, **choices):
    """``count`` rows of sizes drawn from the choices, of one library on H100."""
    drawn = {name: rng.choice(values, count) for name, values in choices.items()}
    return pd.DataFrame({"accelerator": H100.name, "version": "1.0"} | drawn)


def gemm_table(rng):
    """FP8 products: 2mnk at the matrix units and the traffic of both operands and the result, and a cast before."""
    sizes = [256, 512, 1024, 4096, 8192, 16384]
    table, true = rows(rng, 400, m=sizes, n=sizes, k=sizes), TRUTH["gemm"]
    m, n, k = (table[c].to_numpy(float) for c in "mnk")
    compute = 2 * (k + true["k0"]) * (m * n + true["waves"] * 132 * 128 * 256) / (true["eta"] * 1979e12)
    traffic = (n * k + m * k + 2 * m * n) / (true["eta_m"] * 3350e9)
    cast = 3 * m * k / (true["eta_cast"] * 3350e9)
    seconds = np.hypot(compute, traffic) + cast + true["tau_us"] * 1e-6
    return table.assign(backend="trtllm", dtype="fp8-block", time_s=noisy(seconds, rng))


def grouped_table(rng):
    """Two products of every local expert, the tokens of the whole group passing through, 30 us around them."""
    table = rows(rng, 400, hidden=[2048, 4096, 7168], moe_ffn=[1024, 2048, 4096], experts=[32, 64, 128], ep=[1, 4, 8])
    table = table.assign(tokens=rng.choice([2048, 8192, 32768], 400), top_k=4, tp=1)
    true, base = TRUTH["grouped"], TRUTH["gemm"]
    h, f, local = table.hidden.to_numpy(float), table.moe_ffn.to_numpy(float), (table.experts / table.ep).to_numpy()
    copies = (table.tokens * 4 / table.ep).to_numpy()

    def product(n, k):
        area = (copies + true["rows"] * local) * n + base["waves"] * 132 * 128 * 256
        compute = 2 * (k + base["k0"]) * area / (base["eta"] * 1979e12)
        traffic = (local * n * k + copies * k + 2 * copies * n) / (true["eta_m"] * 3350e9)
        return np.hypot(compute, traffic)

    passing = 2 * 4 * table.tokens.to_numpy() * h * (1 + 4 / table.ep.to_numpy()) / 3350e9
    seconds = product(2 * f, h) + product(h, f) + passing + 30e-6
    return table.assign(backend="trtllm", dtype="fp8-block", distribution="balanced", time_s=noisy(seconds, rng))


def attention_table(rng, qk, v):
    """Causal half of the scores, query blocks of 128 on 132 SMs, operands passed through memory."""
    widths = [64, 128, 256] if qk == v else [qk]
    table = rows(rng, 400, heads=[4, 8, 16, 32, 64], batch=[1, 2, 8], seq_len=[512, 1024, 4096, 16384], head_dim=widths)
    table = table.assign(kv_heads=np.minimum(8, table.heads) if qk == v else table.heads)
    true, d0 = TRUTH["attention"], TRUTH["attention"]["d0"] if qk == v else 0.0
    heads, batch, length = (table[c].to_numpy(float) for c in ("heads", "batch", "seq_len"))
    wide = table.head_dim.to_numpy(float) + (table.head_dim.to_numpy(float) if qk == v else v)
    idle = 1 + true["fill"] * 132 / (heads * batch * length / 128)
    compute = batch * length**2 * heads * wide * (1 + 2 * d0 / wide) * idle / (true["eta"] * 989.5e12)
    traffic = 2 * batch * length * wide * (heads + table.kv_heads.to_numpy(float))
    seconds = compute + true["io"] * traffic / 3350e9 + true["tau_us"] * 1e-6
    return table.assign(dtype="bf16", kernel="flash", backend="sglang", time_s=noisy(seconds, rng))


def nccl_table(rng):
    table, true = (
        rows(rng, 300, n_gpus=[2, 4, 8], bytes=[2.0**e for e in (9, 12, 20, 22, 24, 26, 28)]),
        TRUTH["collective"],
    )
    n, sent = table.n_gpus.to_numpy(float), (table.bytes * (1 - 1 / table.n_gpus)).to_numpy()
    ideal = sent / (true["rate"] * 450e9 * (1 - true["loss"] / n))
    floor = (true["latency_us"] + true["step_us"] * (n - 1)) * 1e-6
    seconds = floor + ideal + np.sqrt(true["ramp_us"] * 1e-6 * ideal)
    return table.assign(backend="nccl", op="all_gather", dtype="fp16", time_s=noisy(seconds, rng))


def deepep_table(rng):
    """Two experts chosen of sixteen on eight ranks: 8 (1 - C(14,2)/C(16,2)) of them are met."""
    table, true = rows(rng, 100, tokens=[128, 1024, 4096, 16384], hidden=[2048, 7168]), TRUTH["dispatch"]
    met = 8 * (1 - (14 * 13) / (16 * 15))
    ideal = 2 * table.tokens.to_numpy() * table.hidden.to_numpy() * met * 7 / 8 / (true["gb_s"] * 1e9)
    seconds = true["latency_us"] * 1e-6 + ideal + np.sqrt(true["ramp_us"] * 1e-6 * ideal)
    table = table.assign(n_gpus=8, nodes=1, experts=16, top_k=2, sms=20, op="combine", backend="deepep")
    return table.assign(time_s=noisy(seconds, rng))


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    rng, directory = np.random.default_rng(7), tmp_path_factory.mktemp("tables")
    latent = attention_table(rng, 192, 128).rename(columns={"head_dim": "qk_dim"}).assign(v_dim=128)
    tables = (
        gemm_table(rng),
        grouped_table(rng),
        attention_table(rng, 1, 1),
        latent,
        nccl_table(rng),
        deepep_table(rng),
    )
    for name, table in zip(FILES, tables, strict=True):
        table.to_parquet(directory / f"{name}.parquet")
    return fit_kernel_tables(directory)


@pytest.mark.parametrize(
    ("kind", "variant", "truth"),
    [
        ("gemm", "fp8-block", TRUTH["gemm"]),
        ("grouped_gemm", "fp8-block", TRUTH["grouped"]),
        ("attention", "gqa", TRUTH["attention"]),
        ("attention", "mla", TRUTH["attention"] | {"d0": 0.0, "eta": 0.6 * 1.07}),
        ("collective", "all_gather", TRUTH["collective"]),
        ("dispatch", "deepep", TRUTH["dispatch"]),
    ],
)
def test_the_constants_behind_the_measurements_are_found(fitted, kind, variant, truth):
    one = getattr(fitted, kind)["H100"][variant]
    assert {name: getattr(one.fit, name) for name in truth} == pytest.approx(truth, rel=0.15, abs=1e-6)
    assert max(one.error_pct[:2]) < 3  # measured with 2 % of noise


def test_families_without_measurements_keep_their_constants(fitted):
    for kind in ("gemm", "grouped_gemm", "attention", "collective"):
        assert getattr(fitted, kind)["MI300X"] == getattr(kernel_tables(), kind)["MI300X"]


def test_what_is_written_is_read_again(tmp_path):
    path = tmp_path / "kernels.json"
    path.write_text(to_json(kernel_tables()))
    assert parse(json.loads(path.read_text("utf-8"))) == kernel_tables()


def test_missing_measurements_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"gemm\.parquet does not exist"):
        fit_kernel_tables(tmp_path)


def test_incomplete_constants_are_named():
    empty = {kind: {} for kind in ("grouped_gemm", "attention", "collective", "dispatch")}
    with pytest.raises(ValueError, match="gemm, H100, bf16 lack 'k0'"):
        parse(empty | {"gemm": {"H100": {"bf16": {"eta": 0.8}}}})
    with pytest.raises(ValueError, match="lack the table 'gemm'"):
        parse(empty)


def test_shipped_fits_hold_on_shapes_they_have_not_seen():
    """Held-out median error, percent: single products 8, experts 13, attention 8, collectives and dispatch 12."""
    bounds = {"gemm": 8, "grouped_gemm": 13, "attention": 8, "collective": 12, "dispatch": 12}
    for kind, bound in bounds.items():
        for variants in getattr(kernel_tables(), kind).values():
            for one in variants.values():
                assert one.source
                if one.shapes:
                    mean, median, high = one.error_pct
                    assert 0 < median <= bound
                    assert median <= mean <= high


@pytest.mark.parametrize("name", accelerators())
def test_every_accelerator_has_constants(name):
    chip, tables = accelerators()[name], kernel_tables()
    assert entry(tables.gemm, chip, "bf16")
    assert entry(tables.grouped_gemm, chip, "bf16")
    assert entry(tables.attention, chip, "gqa")
    assert entry(tables.attention, chip, "mla")
    for operation in ("all_gather", "reduce_scatter", "all_reduce", "all_to_all"):
        assert entry(tables.collective, chip, operation)
    assert (entry(tables.gemm, chip, "fp8-block") is not None) == (chip.peak_fp8_flops > 0)


@given(
    size=st.tuples(*[st.integers(1, 65536)] * 3),
    larger=st.tuples(*[st.integers(0, 65536)] * 3),
    precision=st.sampled_from([Precision.BF16, Precision.FP8_DELAYED, Precision.FP8_BLOCKWISE]),
    seconds=st.sampled_from([gemm_seconds, weight_gradient_seconds]),
)
def test_larger_products_take_longer(size, larger, precision, seconds):
    fit = kernel_tables().gemm["H100"]["fp8-block"].fit
    rates = fitted_rates(fit, H100, precision)
    small = [np.array(float(s)) for s in size]
    large = [np.array(float(s + more)) for s, more in zip(size, larger, strict=True)]
    assert seconds(rates, *small) <= seconds(rates, *large)
