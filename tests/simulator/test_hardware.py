import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.hardware import accelerators, find_accelerator, parse_cluster


@pytest.mark.parametrize("name", accelerators())
def test_figures_are_physical_and_have_a_source(name: str) -> None:
    part = accelerators()[name]
    assert part.source.strip()
    assert part.peak_bf16_flops > 1e14
    assert part.peak_fp8_flops == 0 or part.peak_fp8_flops == pytest.approx(2 * part.peak_bf16_flops, rel=0.01)
    assert 30e9 < part.memory_bytes < 310e9
    assert part.nic_bytes_per_s < part.link_bytes_per_s < part.memory_bytes_per_s
    assert math.isnan(part.usd_per_gpu_hour) or part.usd_per_gpu_hour > 0


def test_memory_is_below_the_marketed_size() -> None:
    """H100 80 GiB of stacks, H200 144, B200 and GB200 192, B300 and GB300 288."""
    fitted = {"H100-SXM5-80GB": 80, "H200-SXM5-141GB": 144, "B200-SXM-180GB": 192, "GB300-NVL72": 288}
    for name, gib in fitted.items():
        assert 0.9 * gib < accelerators()[name].memory_bytes / 2**30 < gib


@given(st.sampled_from(sorted(accelerators())), st.integers(1, 1000))
def test_a_cluster_name_reads_back_as_itself(name: str, nodes: int) -> None:
    n_gpus = nodes * (4 if "NVL72" in name else 8)
    cluster = parse_cluster(f"{n_gpus}x{name}")
    assert cluster.name == f"{n_gpus}x{name}"
    assert cluster.nodes == nodes
    assert parse_cluster(f" {cluster.name.lower()} ") == cluster


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("64xH200", "64xH200-SXM5-141GB"),
        ("8xb200", "8xB200-SXM-180GB"),
        ("72XGB300", "72xGB300-NVL72"),
        ("8xA100-80GB", "8xA100-SXM4-80GB"),
        ("2xh100-sxm5", "2xH100-SXM5-80GB"),
    ],
)
def test_unambiguous_short_names(text: str, name: str) -> None:
    assert parse_cluster(text).name == name


def test_hosts_and_domains() -> None:
    assert parse_cluster("3xH100").gpus_per_node == 3
    assert parse_cluster("64xH100").gpus_per_node == 8
    rack = parse_cluster("72xGB200-NVL72")
    assert (rack.gpus_per_node, rack.nodes, rack.accelerator.domain_gpus) == (4, 18, 72)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("64xH20O-SXM5-141GB", "H200-SXM5-141GB"),
        ("8xA100", "A100-SXM4-40GB, A100-SXM4-80GB"),
        ("0xH100", "between 1 and"),
        ("-8xH100", "between 1 and"),
        ("200001xH100", "between 1 and"),
        (f"{'9' * 5000}xH100", "between 1 and"),
        ("64H100", "<number of GPUs>x<accelerator>"),
        ("xH100", "<number of GPUs>x<accelerator>"),
        ("", "<number of GPUs>x<accelerator>"),
        ("12xH100", "8 or 16"),
        ("6xGB200", "4 or 8"),
        ("8x80GB", "not known"),
    ],
)
def test_what_cannot_be_read_says_what_to_write(text: str, hint: str) -> None:
    with pytest.raises(ValueError, match=r"^(cluster|accelerator) ") as caught:
        parse_cluster(text)
    assert hint in str(caught.value)
    assert "\n" not in str(caught.value)


@given(st.text(max_size=30))
def test_any_text_is_a_cluster_or_a_value_error(text: str) -> None:
    try:
        cluster = parse_cluster(text)
    except ValueError:
        return
    assert cluster == parse_cluster(cluster.name)


def test_exact_name_wins_over_word_match() -> None:
    assert find_accelerator("mi300x").name == "MI300X"
