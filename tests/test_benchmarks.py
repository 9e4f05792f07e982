"""The frame of benchmarks that need hardware, on any machine and with small nets."""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from argparse import Namespace
from ctypes.util import find_library
from pathlib import Path
from typing import Any

import pytest

import purine as pu
from purine.registry.kind import REGISTERED
from purine.trace.events import Event
from purine.trace.trace import Trace
from tests.forked import python

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(sys, "path", [*sys.path])
    return runpy.run_path(str(BENCHMARKS / "gpu.py"))


def options(**more: object) -> Namespace:
    settings: dict[str, object] = {
        "contenders": ["eager", "default"],
        "device": "cpu",
        "precision": "fp32",
        "optimizer": "best",
        "warm": 1,
        "tiny": True,
        "turns": 2,
        "seconds": 0.01,
        "patience": 60.0,
        "limit": 0.0,
        "ends": float("inf"),
        "keep_caches": False,
        "logs": None,
        "together": False,
        "caches": "",
        "without": (),
    }
    return Namespace(**(settings | more))


def ran(script: str, command: str) -> subprocess.CompletedProcess[str]:
    return python(BENCHMARKS / script, *command.split())


@pytest.mark.multiprocess
def test_gpu_compares_contenders_in_turns() -> None:
    command = "--device cpu --tiny --precision fp32 --rows gpt2:1 --turns 2"
    command += " --seconds 0.01 --contenders purine eager default --without gpt2:1/default"
    done = ran("gpu.py", command)
    assert done.returncode == 0, done.stderr
    row = json.loads(done.stdout.splitlines()[-1])["rows"]["gpt2:1"]
    assert row["notes"] == {}
    assert row["unit"] == "tokens/s"
    assert row["rate"]["eager"] == pytest.approx(16e3 / row["ms"]["eager"], rel=0.01)
    for key in ("reserved_mb", "start_s", "spread_ms"):
        assert set(row[key]) == {"purine", "eager"}
    assert {"eager_ratio", "memory_ratio"} <= set(row)


def test_gpu_refuses_to_leave_out_who_takes_no_part() -> None:
    done = ran("gpu.py", "--rows nin:8 --without nin:9/eager")
    assert done.returncode == 2
    assert "--without: 'nin:9/eager' takes no part anyway; expected nin:8/default" in done.stderr


@pytest.mark.parametrize(
    ("script", "command", "words"),
    [
        ("gpu.py", "--rows nin:8", "torch sees no GPU; benchmarks/gpu.py --device cpu"),
        ("gpu_idle.py", "", "torch sees no GPU"),
        ("gpu_idle.py", "--steps 20", "--steps is 20; expected more than --skip, 20"),
        ("foresight.py", "--only repaly", "--only: there is no part 'repaly'; expected some of"),
        ("step.py", "--steps 0", "--steps is 0; expected 1 or more"),
        ("step.py", "--warm -1", "--warm is -1; expected 0 or more"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    monkeypatch: pytest.MonkeyPatch, script: str, command: str, words: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    done = ran(script, command)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(f"{script}: error: {words}")
    assert "Traceback" not in done.stderr


def test_gpu_ratios_are_of_turns_and_of_the_best_mode(
    gpu: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    measured = {
        "purine": gpu["Measured"](times=[0.001, 0.002, 0.004], reserved=2e9),
        "eager": gpu["Measured"](times=[0.003, 0.004, 0.004], reserved=4e9),
        "default": gpu["Measured"](times=[0.009, 0.009, 0.009]),
        "reduce-overhead": gpu["Measured"](times=[0.0005, 0.002, 0.012], note="optimizer compiled"),
        "max-autotune": gpu["Measured"](times=[0.0001], failed="out of memory"),
    }
    row = gpu["summary"]("nin", 8, options(), measured)
    assert row["eager_ratio"] == 2.0
    assert (row["best_mode"], row["compile_ratio"]) == ("reduce-overhead", 1.0)
    assert row["memory_ratio"] == 0.5
    assert row["rate"]["purine"] == 4000.0
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == {"nin:8": row}
    shown = gpu["table"]({"nin:8": row})
    assert "| failed | 2.0 | 1.0 | 0.5 |" in shown
    assert "- nin:8, max-autotune: out of memory" in shown


def test_gpu_notes_a_contender_that_ends_and_one_that_is_too_late(
    gpu: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = shutil.which("false")
    assert nothing is not None
    monkeypatch.setattr(sys, "executable", nothing)
    ended = gpu["compare"]("nin", 2, options())
    assert [one.failed for one in ended.values()] == ["ended with 1: "] * 2
    late = gpu["compare"]("nin", 2, options(ends=0.0, limit=5.0))
    assert [one.failed for one in late.values()] == ["not started: 5 s are over"] * 2
    row = gpu["summary"]("nin", 2, options(), late)
    assert row["ms"] == {}
    assert set(row["notes"]) == {"eager", "default"}


def test_idle_time_and_hidden_transfers_are_read_from_a_trace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    idle = runpy.run_path(str(BENCHMARKS / "gpu_idle.py"))["idle"]
    card = "host 127.0.0.1, cuda:0"
    events = [Event("step", "Fused", 0, card, "compute", 0, 100)]
    for turn in range(1, 5):  # of 100 each, 90 of them busy; the copy for the next sticks out
        start = 100 * turn
        events.append(Event("step", "Fused", turn, card, "compute", start, start + 90))
        events.append(Event("copy", "Copy", turn, card, "inbound", start + 70, start + 95))
    found = idle(Trace(tuple(sorted(events, key=lambda event: event.start)), ()), 1)
    assert found["iterations"] == 4
    assert found["idle"] == pytest.approx(30 / 390)
    assert found["gap_us"] == pytest.approx(0.01)
    assert found["input_hidden"] == pytest.approx(20 / 25)


@pytest.mark.multiprocess
def test_scaling_tells_how_much_of_the_communication_is_hidden() -> None:
    command = "--net lenet --devices 2 --turns 1 --seconds 0.1 --contenders purine limit"
    done = ran("scaling.py", f"{command} --hidden")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    (hidden,) = found["hidden"]
    assert 0 < hidden <= 1
    (shown,) = re.findall(r"([\d.]+)% of transfers and reductions hidden", done.stdout)
    assert float(shown) == pytest.approx(100 * hidden, abs=0.06)
    assert found["limit_fraction"] > 0


@pytest.mark.multiprocess
def test_scaling_compares_hosts_with_the_synchronous_limit() -> None:
    command = "--net mlp --devices 2 --turns 1 --seconds 0.05 --hosts --contenders synchronous"
    done = ran("scaling.py", command)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    rates = {name: rate for name, (rate,) in found["images_per_second"].items()}
    ratio = pytest.approx(rates["hosts"] / rates["synchronous"], rel=1e-3)
    assert found["synchronous_ratio"] == {"hosts": [ratio]}


def test_scaling_takes_medians_over_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    scaling = runpy.run_path(str(BENCHMARKS / "scaling.py"))
    starts = [[1.0, 2.0, 9.0], [4.0, 5.0, 6.0], [3.0, 3.0, 3.0]]
    assert scaling["middle"](starts) == 3.0
    assert scaling["spread"](starts) == (2.0, 5.0)
    assert scaling["spread"](starts[:1]) == (1.0, 9.0)
    assert scaling["ratio"](starts, [[1.0, 1.0, 3.0], [2.0, 2.0, 2.0], [1.0, 1.0, 1.0]]) == 2.5


def test_processes_of_the_synchronous_limit_meet_in_each_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    meeting = runpy.run_path(str(BENCHMARKS / "scaling.py"))["meeting"]
    data = pu.data.fashion_mini()
    step = pu.solvers.sgd(pu.backward(pu.data.prepare(pu.zoo.mlp(batch=8), data.train)), lr=0.1)
    bells = [os.eventfd(0, os.EFD_NONBLOCK) for _ in range(2)]
    try:
        names = Namespace(rank=0, count=2, bells=",".join(map(str, bells)))
        met = meeting(step, names)
        os.eventfd_write(bells[0], 3)  # the other process is three steps ahead
        losses = []
        for graph in (step, met):
            with pu.Run(graph, data=data, threads=1) as run:
                losses.append([result.loss for result in run.steps(3)])
        assert losses[0] == losses[1]
        assert os.eventfd_read(bells[1]) == 3
    finally:
        del REGISTERED["Meet"]
        for bell in bells:
            os.close(bell)


@pytest.mark.multiprocess
def test_transport_compares_ours_with_its_raw_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PURINE_GPI2", raising=False)
    sizes = "--sizes 1024,65536,131072 --blobs 2 --slots 2"
    done = ran("transport.py", f"--transports shm gaspi {sizes} --turns 2 --seconds 0.01")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert set(found["ratios"]["shm"]) == {"8", "1024", "65536", "131072"}
    worst = max(found["ratios"]["shm"]["65536"], found["ratios"]["shm"]["131072"])
    if find_library("GPI2") is None:
        assert "gaspi is left out: GPI-2 is not installed" in done.stdout
        assert found["worst"]["ratio"] == worst > 0
        assert found["latency_us"].keys() == {"shm", "memcpy"}


@pytest.mark.parametrize("words", ["--sizes 4,1024", "--turns 0", "--transports pigeon"])
def test_transport_refuses_what_it_cannot_measure(words: str) -> None:
    done = ran("transport.py", words)
    assert done.returncode == 2
    assert "transport.py: error: " in done.stderr


def test_pipeline_takes_idle_time_from_each_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    idle_parts = runpy.run_path(str(BENCHMARKS / "pipeline.py"))["idle_parts"]
    one, two = "host a, cpu:0", "host a, cpu:1"
    events = [
        Event("a", "Conv", 0, one, "compute", 0, 10),
        Event("b", "Conv", 1, one, "compute", 8, 14),  # 2 of it before the first has ended
        Event("copy", "Copy", 1, two, "inbound", 10, 20),
        Event("c", "Conv", 1, two, "compute", 14, 20),
        Event("d", "Conv", 2, two, "compute", 20, 30),
    ]
    assert idle_parts(events, 2) == [0.5, 0.5]
    assert idle_parts(events[:1], 2) == []


def test_precision_tells_what_float32_runs_are_apart() -> None:
    command = "--nets lenet --device cpu:0 --steps 2 --more 3 --starts 2 --workers 2"
    found = ran("precision.py", command)
    row = json.loads(found.stdout.splitlines()[-1])["nets"]["lenet"]
    assert row["difference"] == 0
    assert 0 < row["fp32_spread"] < 1e-4
    assert 0 < row["bf16_difference"] < 0.02


def test_what_one_waits_for_is_measured_in_turns() -> None:
    script = runpy.run_path(str(BENCHMARKS / "start.py"))
    settings = Namespace(turns=1, module_turns=1, layers=1, width=64, vocabulary=64)
    with script["small_net"]() as net:
        figures = {"help": script["commands"](net)["help"]}
        script["measure"].__globals__["commands"] = lambda net: figures
        found = script["measure"]({"now": script["OWN"]}, net, settings)
    assert set(found) == {"help", *script["MODULE"]}
    assert all(len(by_tree["now"]) == 1 and by_tree["now"][0] > 0 for by_tree in found.values())


def test_busy_processes_end_with_the_benchmark(capsys: pytest.CaptureFixture[str]) -> None:
    script = runpy.run_path(str(BENCHMARKS / "busy.py"))
    started: list[subprocess.Popen[bytes]] = []

    class Noted(subprocess.Popen[bytes]):
        def __init__(self, *given: Any, **settings: Any) -> None:
            super().__init__(*given, **settings)
            started.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "Popen", Noted)
        with script["busy"](2):
            assert [child.poll() for child in started] == [None, None]
    assert all(child.returncode is not None for child in started)
    speeds = {
        "idle": {"default": [97.0], "spinning": [100.0], "passive": [80.0]},
        "busy": {"default": [6.0], "spinning": [1.0], "passive": [8.0]},
    }
    script["report"](speeds, Namespace(busy=2))
    answer = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert answer["cost_idle"] == pytest.approx(3 / 97)
    assert answer["kept_busy"] == 0.75


def test_import_zoo_lists_what_it_knows_and_refuses_what_it_does_not() -> None:
    done = ran("import_zoo.py", "--list")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) >= 60
    done = ran("import_zoo.py", "--only gpt2 nosuch")
    assert done.returncode == 2
    assert "--only: there is no nosuch" in done.stderr


def test_import_zoo_agrees_with_torch_on_a_small_model() -> None:
    pytest.importorskip("transformers")
    done = ran("import_zoo.py", "--only gpt2 resnet")
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["agree"], result["wrong"], result["failed"]) == (2, [], [])


def test_stragglers_are_slow_and_everything_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    arguments = ["--net", "mlp", "--turns", "1", "--seconds", "0.01", "--target", "0.01"]
    arguments += ["--most", "0.1", "--contenders", "ssp", "gossip"]
    monkeypatch.setattr(sys, "argv", ["straggler.py", *arguments])
    try:
        runpy.run_path(str(BENCHMARKS / "straggler.py"), run_name="__main__")
    finally:
        REGISTERED.pop("Drag")
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {"synchronous_ratio", "ssp_ratio", "gossip_ratio"} <= found.keys()
    assert all(row["seconds_to_target"] > 0 for row in found["rows"].values())


def test_asynchronous_training_is_compared_with_synchronous() -> None:
    command = "--nets mlp --epochs 0.1 --turns 2 --seeds 1 --target 0.1 --schemes ssp easgd"
    done = ran("asynchronous.py", command)
    *rows, last = done.stdout.splitlines()
    assert [row.split()[1] for row in rows[-3:]] == ["synchronous", "ssp", "easgd"]
    found = json.loads(last)
    (table,) = found["tables"].values()
    assert all(row["images_to_target"] > 0 for row in table.values())
    assert table["ssp"]["largest_staleness"] <= 3
    points = [100 * (table[n]["accuracy"] - table["synchronous"]["accuracy"]) for n in table]
    assert found["largest_difference"] == pytest.approx(max(points, key=abs))


def test_mxnet_needs_an_interpreter_of_its_own() -> None:
    done = ran("beside_mxnet.py", "--python nowhere/python")
    assert done.returncode == 2
    assert "there is no nowhere/python; expected an interpreter with mxnet" in done.stderr
