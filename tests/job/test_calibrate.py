"""The profile of a machine: measured, kept, read again, and what predictions make of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from purine.analysis.cost import PROFILE, Profile, load_profile
from purine.analysis.measured import GPU, Kernels, Point
from purine.errors import ConfigError
from purine.job import calibrate as measuring
from purine.job import make_plan, merge
from purine.job.foresee import foresight
from purine.job.probes import probes
from purine.job.profiles import own_profile, profile_path, profile_text, save_profile
from purine.zoo import NETS

KERNELS = Kernels((Point("Relu", (8, 4), 1, 0, 256, 2e-6), Point("Relu", (8,), GPU, 0, 64, 3e-6)))
KNOWN = Profile(name="a 'small' one", crowding=0.05, threads=2, kernels=KERNELS)


def test_a_measured_profile_gives_predictions(monkeypatch: pytest.MonkeyPatch) -> None:
    small = tuple(probe for probe in probes(large=False) if probe.name.startswith("perceptron"))
    monkeypatch.setattr(measuring, "probes", lambda large: small[:1])
    monkeypatch.setattr(measuring, "_CROWDED", (small[0].name,))
    lines: list[str] = []
    found = measuring.calibrate(seconds=1.0, tell=lines.append)
    assert {"aten.addmm", "aten.mm", "MomentumUpdate"} <= {p.kind for p in found.kernels.points}
    assert found.dispatch > 0
    assert found.hop > 0
    assert found.core.flops > 1e6
    assert any("perceptron, batch 16" in line for line in lines)
    plan = make_plan(merge({}, {"net": "mlp", "iters": 5, "threads": 1}))
    told = foresight(plan, profile=found, memory=False)
    assert 1e-5 < told.prediction.seconds < 10
    assert found.name in told.basis


def test_probes_are_no_nets_of_the_zoo() -> None:
    nets = [probe.net for large in (False, True) for probe in probes(large=large)]
    own = [NETS[name](batch=2) for name in ("mlp", "lenet", "nin", "alexnet", "vgg16")]
    weights = [sorted(str(net.blobs[s.read].shape) for s in net.states.values()) for net in nets]
    for net in own:
        shapes = sorted(str(net.blobs[state.read].shape) for state in net.states.values())
        assert shapes not in weights


def test_a_profile_reads_back(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "p.yaml"
    save_profile(KNOWN, file)
    found = load_profile(file)
    assert found == KNOWN
    assert profile_text(found) == file.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("version: 2", "version 2"),
        ("speed: 3", "'speed'"),
        ("kernels: [[Relu, [1], 1, 0, 8, 0]]", "takes 0 s"),
    ],
)
def test_a_wrong_profile_is_refused(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=words):
        load_profile(file)


def test_predictions_read_the_kept_profile_and_decisions_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PURINE_CACHE", str(tmp_path))
    assert own_profile() is PROFILE
    save_profile(replace(KNOWN, name="mine"), profile_path())
    assert own_profile().name == "mine"
    job = {"net": "mlp", "devices": "cpu:0-1", "parallel": "pipeline=2", "share_cores": True}
    before = make_plan(merge({}, job)).step
    assert make_plan(merge({}, job)).step == before
    assert PROFILE.name == "default"


def test_a_gpu_has_times_of_its_own() -> None:
    def bytes_alone(flops: int, moved: int) -> float:
        return moved / 1e9

    assert KERNELS.seconds("Relu", (8,), GPU, 0, 64, bytes_alone) == pytest.approx(3e-6)
    assert KERNELS.seconds("Relu", (8, 4), 4, 0, 256, bytes_alone) == pytest.approx(2e-6)
    assert Kernels(KERNELS.points[:1]).seconds("Relu", (8,), GPU, 0, 64, bytes_alone) is None
