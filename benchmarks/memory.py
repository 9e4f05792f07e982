"""How much memory does training take on CPUs: Purine against PyTorch, and against its own forecast?

Three questions, each with its own option.

*Peaks* (default): each contender is a process of its own for each turn; turns of Purine and of
eager PyTorch (channels-last where nets have images, fused optimizer, gradients set to None) take
turns, and so do pipelines of Purine and of `torch.distributed.pipelining` (see `pipeline.py`).
`raw` is the most that the process ever had resident. `beyond` is `raw` less what it held before
the net was built: both have torch, its compiler front end and their own packages imported by then.
Ranks of a pipeline are added up. The median over turns is reported, with milliseconds per step.

*Forecast* (`--forecast`): `peak_memory` of nets and schemes against what malloc has handed out. It
is asked (`mallinfo2`) whenever a kernel has returned, so inputs and results are all there. What it
has handed out while the run is idle, less the states and buffers that are kept between iterations,
is no part of a step and is subtracted. Runs dispatch op by op, since nobody sees what is handed out
within a segment. Several devices can follow each other in many orders. The forecast is for the
worst of these, so what is *held* is the most over a run whose ops are delayed at random, which
brings such orders about. *undelayed* is the most over six iterations before that.

*GPU* (`--gpu`): the forecast against `torch.cuda.max_memory_allocated` of some steps.

The last line is JSON.

    python benchmarks/memory.py --nets googlenet resnet50 --stages 2
    python benchmarks/memory.py --forecast
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import subprocess
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from step import DECAY, LR, MOMENTUM, SETTINGS, held, purine_steps, samples, torch_steps

if TYPE_CHECKING:
    import purine as pu
    from purine.runtime.program import Program

NETS = ("lenet", "nin", "googlenet", "resnet50", "gpt2")
STEPS = {"lenet": 60, "nin": 8}
"""Steps of a contender; 6 of the other nets."""
MILLION = 1e6
SCHEMES: Mapping[str, Mapping[str, object]] = {
    "one": {},
    "accumulate": {"accumulate": 2},
    "replicas": {"devices": "cpu:0-1"},
    "gpipe": {"devices": "cpu:0-1", "pipeline": 2, "schedule": "gpipe"},
    "1f1b": {"devices": "cpu:0-1", "pipeline": 2, "schedule": "1f1b"},
    "interleaved": {"devices": "cpu:0-1", "pipeline": 2, "schedule": "interleaved"},
    "zero-bubble": {"devices": "cpu:0-1", "pipeline": 2, "schedule": "zero-bubble"},
    "recompute": {"recompute": True},
}
"""How a step is spread over devices, for the forecast."""
SMALL = {"mlp": 64, "lenet": 64, "nin": 16, "googlenet": 4, "resnet50": 2, "gpt2": 1}
"""The nets of the forecast, each with the samples of a step, or of a micro-batch."""
MICRO = 4
CREDIT = 3
"""Iterations in flight: those of a run with its default `prefetch`."""
DELAYED = {"mlp": 96, "lenet": 96, "nin": 24, "googlenet": 12, "resnet50": 10, "gpt2": 6}
"""Delayed iterations for the forecast."""
LEAST = 0.1
"""Seconds of a device that the delays of an iteration take at least, but for their factors."""
WORKERS = ("purine", "eager", "forecast", "gpu")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--nets", nargs="*", choices=sorted(SETTINGS), default=list(NETS))
    parser.add_argument("--stages", nargs="*", type=int, default=[], help="stages of pipelines")
    parser.add_argument("--schedule", default="1f1b")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--forecast", action="store_true", help="forecast against malloc")
    parser.add_argument("--schemes", nargs="+", choices=SCHEMES, default=list(SCHEMES))
    parser.add_argument("--delayed", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--gpu", action="store_true", help="forecast against torch's peak on a GPU")
    parser.add_argument("--worker", choices=WORKERS, help=argparse.SUPPRESS)
    parser.add_argument("--scheme", default="one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.turns < 1:
        parser.error(f"--turns is {options.turns}; expected 1 or more")
    if options.worker:
        workers = {"forecast": forecast_worker, "gpu": gpu_worker}
        print(json.dumps(workers.get(options.worker, peak_worker)(options)), flush=True)
    elif options.forecast or options.gpu:
        compare_forecasts(options)
    else:
        compare_peaks(options)


def fresh(worker: str, net: str, scheme: str = "one") -> dict[str, float]:
    """What a new process says."""
    command = [sys.executable, __file__, "--worker", worker, "--nets", net, "--scheme", scheme]
    found = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if found.returncode:
        sys.exit(f"the worker {worker} of {net}, {scheme}, ended with {found.returncode}")
    answer: dict[str, float] = json.loads(found.stdout.splitlines()[-1])
    return answer


def compare_peaks(options: Namespace) -> None:
    rows = {}
    print(f"{'':18}{'contender':>10}{'raw MB':>10}{'beyond MB':>11}{'ms/step':>10}")
    for net in options.nets:
        turns = [(fresh("purine", net), fresh("eager", net)) for _ in range(options.turns)]
        rows[net] = row(net, ("purine", "eager"), turns)
    for count in options.stages:
        for net in options.nets:
            if net in ("googlenet", "resnet50", "gpt2"):
                name = f"{net}, {count} stages"
                rows[name] = row(name, ("purine", "torch"), pipelines(options, net, count))
    ratios = {name: found["beyond_ratio"] for name, found in rows.items()}
    print(json.dumps({"rows": rows, "worst_ratio": max(ratios.values(), default=None)}))


def row(
    name: str, contenders: tuple[str, str], turns: Sequence[tuple[Mapping[str, float], ...]]
) -> dict[str, float]:
    """A line for each contender, and the medians and ratios of the two."""
    found: dict[str, float] = {}
    for index, contender in enumerate(contenders):
        for key in ("raw", "beyond", "ms"):
            found[f"{contender}_{key}"] = statistics.median(turn[index][key] for turn in turns)
        values = (found[f"{contender}_{key}"] for key in ("raw", "beyond", "ms"))
        print(f"{name:18}{contender:>10}" + "".join(f"{v:10.1f}" for v in values), flush=True)
    for key in ("raw", "beyond"):
        ours, theirs = (found[f"{contender}_{key}"] for contender in contenders)
        found[f"{key}_ratio"] = round(ours / theirs, 4)
    return found


def pipelines(options: Namespace, net: str, count: int) -> list[tuple[dict[str, float], ...]]:
    """Turns of pipelines, all their processes new in each."""
    import tempfile

    import pipeline

    settings = Namespace(net=net, batch=pipeline.NETS[net], micro=None, stages=count)
    turns = []
    with tempfile.TemporaryDirectory() as folder:
        settings.times = str(Path(folder) / "times.json")
        alone = pipeline.measured_times(settings)
        Path(settings.times).write_text(json.dumps(dict(alone)), encoding="utf-8")
        for _ in range(options.turns):
            turn = []
            for name in ("purine", "torch"):
                team = pipeline.Team(name, settings, count, options.schedule, 4 * count)
                try:
                    team.ask("2")
                    ms = max(team.ask("3")) * 1e3
                    beyond, raw = (sum(team.ask(key)) / MILLION for key in ("memory", "raw"))
                finally:
                    team.end()
                turn.append({"raw": raw, "beyond": beyond, "ms": ms})
            turns.append(tuple(turn))
    return turns


def peak_worker(options: Namespace) -> dict[str, float]:
    import torch
    import torch._dynamo

    import purine as pu

    (net,) = options.nets
    assert pu.zoo.NETS, "the package is imported"
    torch.manual_seed(0)
    torch.randn(64, 64) @ torch.randn(64, 64)
    before = held()
    settings = Namespace(net=net, batch=SETTINGS[net].batch, threads=0)
    steps = (purine_steps if options.worker == "purine" else torch_steps)(settings)
    steps(2)
    count = STEPS.get(net, 6)
    begin = time.perf_counter()
    steps(count)
    ms = (time.perf_counter() - begin) / count * 1e3
    raw = held("VmHWM")
    return {"raw": raw / MILLION, "beyond": (raw - before) / MILLION, "ms": ms}


def compare_forecasts(options: Namespace) -> None:
    worker = "gpu" if options.gpu else "forecast"
    schemes = ["one"] if options.gpu else options.schemes
    nets = [net for net in SMALL if net in options.nets] if options.nets != list(NETS) else SMALL
    print(f"{'':24}{'forecast MB':>12}{'held MB':>10}{'off':>8}{'undelayed MB':>14}")
    errors = {}
    for net in nets:
        for scheme in schemes:
            found = fresh(worker, net, scheme)
            error = found["forecast"] / found["held"] - 1
            errors[f"{net} {scheme}"] = round(error, 4)
            values = f"{found['forecast']:12.2f}{found['held']:10.2f}"
            alone = f"{found['alone']:14.2f}" if "alone" in found else ""
            print(f"{net:12}{scheme:12}{values}{error:8.1%}{alone}", flush=True)
    sizes = sorted(map(abs, errors.values()))
    summary = {"memory_median": statistics.median(sizes), "memory_worst": sizes[-1]}
    print(json.dumps({"errors": errors, **summary}))


def run_of(
    net: str, scheme: str, *, device: str = "cpu:0", threads: int | None = None
) -> tuple[pu.Run, pu.Graph]:
    """A run of a net under a scheme, and the graph that it runs."""
    import purine as pu

    setting = SETTINGS[net]
    named = {"classes": setting.classes} if net != "gpt2" else {}
    graph = pu.zoo.NETS[net](batch=SMALL[net], **named, **setting.arguments)
    step = step_of(graph, scheme, contiguous=net == "gpt2")
    if device != "cpu:0":
        step = pu.to_device(step, device)
    count = max(setting.count, SMALL[net] * MICRO)
    rows = [part.numpy() for part in samples(replace(setting, count=count))]
    names = ("tokens", "targets") if net == "gpt2" else ("image", "label")
    data = pu.data.DataSet("m", pu.data.ArraySource(*rows, names=names, classes=setting.classes))
    return pu.Run(step, data=data, seed=0, threads=threads, share_cores=True), step


def step_of(net: pu.Graph, scheme: str, *, contiguous: bool) -> pu.Graph:
    import purine as pu

    more = SCHEMES[scheme]
    step = pu.solvers.sgd(pu.backward(net), lr=LR, momentum=MOMENTUM, weight_decay=DECAY)
    step = pu.layout(pu.prune(step, ["loss"]), "contiguous" if contiguous else "channels-last")
    if "recompute" in more:
        step = pu.recompute(step, 4)
    if "accumulate" in more:
        return pu.parallel.accumulate(step, MICRO)
    if "schedule" in more:
        schedule = str(more["schedule"])
        chunks = 2 if schedule == "interleaved" else 1
        return pu.parallel.pipeline(
            step, devices="cpu:0-1", micro=MICRO, schedule=schedule, chunks=chunks
        )
    return pu.parallel.replicate(step, "cpu:0-1") if "devices" in more else step


class _Malloc(ctypes.Structure):
    """`struct mallinfo2`."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def handed_out() -> int:
    """The bytes that malloc has handed out and not got back."""
    info = _LIBC.mallinfo2()
    return int(info.uordblks + info.hblkhd)


_LIBC = ctypes.CDLL(None)
if hasattr(_LIBC, "mallinfo2"):
    _LIBC.mallinfo2.restype = _Malloc


class Watch:
    """Lets runs of this process dispatch op by op, and asks malloc whenever a kernel has returned.

    `delay` makes the orders vary in which ops of several devices follow each other: by its
    estimated time, an op takes longer by a factor that is drawn for it, and one for its device.
    """

    def __init__(self) -> None:
        from purine.lowering import Options
        from purine.runtime import program, run

        self.most = 0
        self.buffers: list[Any] = []
        """What keeps the results of kernels between iterations."""
        self.draw = Random(0)
        self.speeds: dict[str, float] = {}
        self.lock = threading.Lock()
        self.compiled = program.compile_program
        setattr(run, "compile_program", self.compile_watched)  # noqa: B010
        setattr(run, "options_for", lambda graph, host=None: Options(host=host))  # noqa: B010

    def compile_watched(self, *arguments: Any, **settings: Any) -> Program:
        from purine.analysis.cost import seconds

        program = self.compiled(*arguments, **settings)
        graph = program.graph
        ops = [graph.ops[name] for name in program.plan.ops]
        lasting = [seconds(op, graph.blobs) for op in ops]
        total = sum(lasting) / len({op.location for op in ops})
        scale = max(1.0, LEAST / total)
        for step in program.steps:
            owner = getattr(step.kernel, "__self__", None)
            if hasattr(owner, "take_back"):
                self.buffers.append(owner)
        steps = (
            replace(step, kernel=self.watched(step.kernel, op.location.device, scale * time))
            for step, op, time in zip(program.steps, ops, lasting, strict=True)
        )
        return replace(program, steps=tuple(steps))

    def watched(self, kernel: Callable[..., object], device: str, lasting: float) -> Any:
        def call(*tensors: object) -> object:
            results = kernel(*tensors)
            with self.lock:
                self.most = max(self.most, handed_out())
                factor = self.draw.lognormvariate(0, 1) * self.speeds.get(device, 0.0)
            if factor:
                time.sleep(lasting * factor)
            return results

        return call

    def delay(self, devices: Iterable[str], *, alike: bool) -> None:
        spread = 0 if alike else 1
        self.speeds = {device: self.draw.lognormvariate(0, spread) for device in devices}

    def kept(self) -> int:
        """The bytes of results that are kept between iterations, while the run is idle."""
        free = (tensor for owner in self.buffers for tensor in owner.free)
        return sum(tensor.untyped_storage().nbytes() for tensor in free)


def forecast_worker(options: Namespace) -> dict[str, float]:
    import torch

    from purine.analysis.infer import size_in_bytes

    torch.set_num_threads(1)
    watch = Watch()
    (net,) = options.nets
    run, step = run_of(net, options.scheme, threads=1)
    for _ in run.steps(3):
        pass
    states = sum(size_in_bytes(step.blobs[name]) for name in step.states)
    idle = handed_out() - states - watch.kept()
    watch.most = 0
    for _ in run.steps(6):
        pass
    alone = watch.most - idle
    devices = sorted({op.location.device for op in step.ops.values()})
    if len(devices) > 1:
        watch.delay(devices, alike=True)
        for number, _ in enumerate(run.steps(options.delayed or DELAYED[net])):
            if number % 4 == 3:
                watch.delay(devices, alike=number % 8 == 7)
    held_most = (watch.most - idle) / MILLION
    return {"forecast": forecast_of(step), "held": held_most, "alone": alone / MILLION}


def forecast_of(step: pu.Graph) -> float:
    from purine.lowering import lower

    return lower(step).peaks(credit=CREDIT).total / MILLION


def gpu_worker(options: Namespace) -> dict[str, float]:
    import torch

    run, step = run_of(options.nets[0], "one", device="cuda:0")
    for _ in run.steps(3):
        pass
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    for _ in run.steps(6):
        pass
    torch.cuda.synchronize()
    held_there = torch.cuda.max_memory_allocated() / MILLION
    return {"forecast": forecast_of(step), "held": held_there}


if __name__ == "__main__":
    main()
