"""How long does a training step take on the CPU, and how much memory: Purine against PyTorch?

Contenders: Purine; PyTorch eager and `torch.compile`, both tuned (channels-last, fused SGD); and
where it is asked for, `fused`: Purine with its step compiled as a whole. Each is a process of its
own, all are started first, and they take turns of a few steps, so that whatever else the machine
does hits all of them alike. Each turn begins with steps that are not timed: a process that slept
for seconds first gets its memory and caches back, and training does not sleep. Reported are the
medians over turns and their spread. Memory is the peak of a process beyond what it held after its
imports.

    python benchmarks/step.py --net nin --batch 64
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))


@dataclass(frozen=True)
class Setting:
    """What a net is measured on: the shape of a sample (none of them an image where it is tokens),
    the number of classes, the arguments of the zoo's net, and how long the parts take."""

    sample: tuple[int, ...]
    classes: int = 10
    arguments: dict[str, object] = field(default_factory=dict)
    count: int = 512
    batch: int = 64
    turns: int = 15
    steps: int = 4
    warm: int = 2


SETTINGS = {
    "mlp": Setting((1, 28, 28)),
    "lenet": Setting((1, 28, 28)),
    "nin": Setting((3, 32, 32)),
    "googlenet": Setting(
        (3, 224, 224),
        1000,
        {"batch_norm": True, "auxiliary": False},
        count=32,
        batch=16,
        turns=9,
        steps=2,
        warm=1,
    ),
    "resnet50": Setting((3, 224, 224), 1000, count=16, batch=8, turns=9, steps=2, warm=1),
    "gpt2": Setting((128,), 50257, {"context": 128}, count=8, batch=4, turns=9, steps=2, warm=1),
}
LR, MOMENTUM, DECAY = 0.01, 0.9, 5e-4
CONTENDERS = ("purine", "eager", "compile", "fused")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--net", choices=sorted(SETTINGS), default="nin")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--threads", type=int, default=0, help="0: all cores")
    parser.add_argument("--turns", type=int)
    parser.add_argument("--steps", type=int, help="timed steps per turn")
    parser.add_argument("--warm", type=int, help="untimed steps before them")
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=CONTENDERS[:3])
    parser.add_argument("--worker", choices=CONTENDERS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    for name in ("batch", "turns", "steps", "warm"):
        if getattr(options, name) is None:
            setattr(options, name, getattr(SETTINGS[options.net], name))
        least = 0 if name == "warm" else 1
        if getattr(options, name) < least:
            parser.error(f"--{name} is {getattr(options, name)}; expected {least} or more")
    if options.worker:
        work(options)
    else:
        compare(options)


def compare(options: argparse.Namespace) -> None:
    """Start a worker per contender, let them take turns, and report."""
    workers = {name: start(name, options) for name in options.contenders}
    times: dict[str, list[float]] = {name: [] for name in workers}
    try:
        for turn in range(options.turns + 1):
            for name, worker in workers.items():
                found = ask(worker, f"{options.steps}")
                if turn:  # the first turn warms up
                    times[name].append(found)
            print(f"turn {turn}/{options.turns}", file=sys.stderr, end="\r", flush=True)
        peaks = {name: ask(worker, "memory") for name, worker in workers.items()}
    finally:
        for worker in workers.values():
            worker.kill()
    print(file=sys.stderr)
    report(options, times, peaks)


def report(
    options: argparse.Namespace, times: dict[str, list[float]], peaks: dict[str, float]
) -> None:
    import torch

    print(f"{options.net}, batch {options.batch}, torch {torch.__version__}, {platform.machine()}")
    print(f"{'':10}{'ms/step':>10}{'quartiles':>20}{'images/s':>10}{'peak MB':>10}")
    rows = {}
    for name, found in times.items():
        median = statistics.median(found)
        low, _, high = statistics.quantiles(found, n=4)
        rows[name] = median
        print(
            f"{name:10}{median * 1e3:10.1f}{f'{low * 1e3:.1f} to {high * 1e3:.1f}':>20}"
            f"{options.batch / median:10.1f}{peaks[name] / 1e6:10.0f}"
        )
    result: dict[str, object] = {
        "net": options.net,
        "batch": options.batch,
        "ms": {name: round(value * 1e3, 3) for name, value in rows.items()},
        "peak_mb": {name: round(value / 1e6, 1) for name, value in peaks.items()},
    }
    for rival in ("eager", "compile", "fused"):
        if rival in rows and "purine" in rows:
            pairs = zip(times[rival], times["purine"], strict=True)
            result[f"{rival}_ratio"] = round(statistics.median(a / b for a, b in pairs), 4)
    if "eager" in peaks and "purine" in peaks:
        result["memory_ratio"] = round(peaks["purine"] / peaks["eager"], 4)
    print(json.dumps(result))


def start(name: str, options: argparse.Namespace) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "--worker", name, "--net", options.net]
    command += ["--batch", str(options.batch), "--threads", str(options.threads)]
    command += ["--warm", str(options.warm)]
    worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    print(f"preparing {name} ...", file=sys.stderr, flush=True)
    ask(worker, "1")
    return worker


def ask(worker: subprocess.Popen[str], question: str) -> float:
    assert worker.stdin is not None
    assert worker.stdout is not None
    print(question, file=worker.stdin, flush=True)
    answer = worker.stdout.readline()
    if not answer:
        sys.exit(f"a worker ended with {worker.wait()}")
    return float(answer)


def work(options: argparse.Namespace) -> None:
    """Answer questions: a number asks for that many steps, `memory` for the peak."""
    import torch

    if options.worker in ("purine", "fused"):
        import purine  # noqa: F401

    if options.threads:
        torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    torch.randn(64, 64) @ torch.randn(64, 64)
    before = held()
    makers = {
        "purine": purine_steps,
        "eager": torch_steps,
        "compile": compiled_steps,
        "fused": partial(purine_steps, fused=True),
    }
    run = makers[options.worker](options)
    for line in sys.stdin:
        if line.strip() == "memory":
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            print(peak - before, flush=True)
        else:
            count = int(line)
            run(options.warm)
            begin = time.perf_counter()
            run(count)
            print((time.perf_counter() - begin) / count, flush=True)


def held(field: str = "VmRSS") -> int:
    """Resident bytes of this process; `VmHWM` asks for the most there ever were."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"no {field} in /proc/self/status")


def samples(setting: Setting) -> tuple[Any, Any]:
    """The samples of one net and their labels, the same for all contenders."""
    import torch

    torch.manual_seed(0)
    if len(setting.sample) == 1:
        tokens = torch.randint(setting.classes, (setting.count, setting.sample[0] + 1))
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    images = torch.randn(setting.count, *setting.sample)
    return images, torch.randint(setting.classes, (setting.count,))


def purine_steps(options: argparse.Namespace, *, fused: bool = False) -> Callable[[int], None]:
    import purine as pu

    setting = SETTINGS[options.net]
    named = {"classes": setting.classes} if options.net != "gpt2" else {}
    net = pu.zoo.NETS[options.net](batch=options.batch, **named, **setting.arguments)
    if options.net == "gpt2":
        step = pu.solvers.adamw(pu.backward(net), lr=1e-4, weight_decay=0.1)
    else:
        step = pu.solvers.sgd(pu.backward(net), lr=LR, momentum=MOMENTUM, weight_decay=DECAY)
    rows = [part.numpy() for part in samples(setting)]
    names = ("tokens", "targets") if options.net == "gpt2" else ("image", "label")
    source = pu.data.ArraySource(*rows, names=names, classes=setting.classes)
    data = pu.data.DataSet("memory", source)
    threads = options.threads or None
    step = pu.layout(pu.prune(step, ["loss"]), "channels-last")
    step = pu.fuse(step) if fused else step
    run = pu.Run(step, data=data, seed=0, threads=threads, compiled=fused)

    def steps(count: int) -> None:
        for result in run.steps(count):
            assert result.loss == result.loss

    return steps


def torch_steps(options: argparse.Namespace, compiled: bool = False) -> Callable[[int], None]:
    import torch
    from rivals import RIVALS, loss_of

    setting = SETTINGS[options.net]
    inputs, labels = samples(setting)
    model = RIVALS[options.net](setting.sample[0], setting.classes)
    model = model.to(memory_format=torch.channels_last)
    if options.net == "gpt2":
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, fused=True)
    else:
        inputs = inputs.contiguous(memory_format=torch.channels_last)
        optimizer = torch.optim.SGD(
            model.parameters(), lr=LR, momentum=MOMENTUM, weight_decay=DECAY, fused=True
        )
    if compiled:
        model = torch.compile(model)
    position = 0

    def steps(count: int) -> None:
        nonlocal position
        for _ in range(count):
            rows = slice(position, position + options.batch)
            position = (position + options.batch) % (setting.count - options.batch + 1)
            optimizer.zero_grad(set_to_none=True)
            loss = loss_of(model(inputs[rows]), labels[rows])
            loss.backward()
            optimizer.step()
            value = loss.item()
            assert value == value

    return steps


def compiled_steps(options: argparse.Namespace) -> Callable[[int], None]:
    return torch_steps(options, compiled=True)


if __name__ == "__main__":
    main()
