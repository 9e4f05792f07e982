"""The cost model: flops and bytes, times by a profile, and profiles from files."""

from __future__ import annotations

from pathlib import Path

import pytest

from purine.analysis.cost import PROFILE, Cost, Profile, Rates, cost, load_profile, seconds
from purine.errors import ConfigError
from purine.graph import Graph
from purine.kinds import Net, inner_product


def product() -> Graph:
    net = Net()
    inner_product(net.input("x", (8, 3)), 5, bias=False, name="fc")
    return net.graph()


def test_cost_is_flops_and_bytes() -> None:
    graph = product()
    found = cost(graph.ops["fc"], graph.blobs)
    assert found.flops == 2 * 8 * 3 * 5
    assert found.bytes == 4 * (8 * 3 + 5 * 3 + 8 * 5)
    assert (found + found).flops == 2 * found.flops


def test_seconds_follow_the_profile() -> None:
    graph = product()
    own = Profile("own", device=Rates(24.0, 158.0, 1.0))
    assert seconds(graph.ops["fc"], graph.blobs, own) == 240 / 24 + 316 / 158 + 1


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        (PROFILE.device, 1000 / 1e11 + 64 / 1e10),
        (PROFILE.core, 1000 / 5e10 + 64 / 1e10 + 2e-6),
        (PROFILE.fused, 1000 / 50 + 64 + 1),
        (PROFILE.recomputed, 1000 + 5.0 * 64),
    ],
)
def test_the_default_profile(rates: Rates, expected: float) -> None:
    assert rates.seconds(Cost(1000, 64)) == expected


def test_a_profile_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "fast.yaml"
    path.write_text("device: {flops: 2e12, bytes: 1e11}\ndispatch_matters: 5e-5\n")
    profile = load_profile(path)
    assert profile == Profile("fast", device=Rates(2e12, 1e11), dispatch_matters=5e-5)


@pytest.mark.parametrize(
    "text",
    [
        "gpu: 3",
        "device: fast",
        "device: {flops: 1}",
        "device: {flops: 0, bytes: 1}",
        "dispatch_matters: soon",
        "[1, 2",
        "",
    ],
)
def test_a_wrong_profile_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match="machine profile"):
        load_profile(path)
    with pytest.raises(ConfigError, match="machine profile"):
        load_profile(tmp_path / "missing.yaml")
