"""How well does data parallel training scale over the cores of one machine?

Contenders, each with one core per device and the same batch on each: Purine, one process whose
devices are cores (`replicate`); the limit, as many processes that train by themselves and never
talk; and PyTorch's DistributedDataParallel over Gloo, tuned (channels-last, fused SGD, static
graph, gradients as views of buckets). For each number of devices all contenders are started first
and then take turns, so that whatever else the machine does hits all of them alike. Reported are
medians over turns. `hidden` is the part of the time of Purine's transfers and reductions that no
device waited for, from a recorded run behind the turns. The last line is JSON, and a picture of the
acceleration can be drawn.

    python benchmarks/scaling.py --net googlenet --devices 1,2
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from step import DECAY, LR, MOMENTUM, SETTINGS, Setting, samples

NETS = {
    "lenet": (SETTINGS["lenet"], 32),
    "nin": (SETTINGS["nin"], 8),
    "googlenet": (SETTINGS["googlenet"], 4),
    "alexnet": (Setting((3, 227, 227), 1000, {"dropout": 0.0}, count=64), 8),
    "resnet50": (SETTINGS["resnet50"], 4),
}
"""Each with the batch of one device."""
CONTENDERS = ("purine", "limit", "ddp")
RECORDED, SKIPPED = 12, 3
"""Iterations of the recorded run, and how many of these do not count."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--net", choices=sorted(NETS), default="googlenet")
    parser.add_argument("--devices", default="1,2", help="numbers of devices, for example 1,2,4,8")
    parser.add_argument("--batch", type=int, help="samples for each device")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="length of a turn, about")
    parser.add_argument("--topology", default="sharded")
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=CONTENDERS)
    parser.add_argument("--picture", type=Path, help="where to write the curve, as SVG")
    parser.add_argument("--worker", choices=CONTENDERS, help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--count", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.batch = options.batch or NETS[options.net][1]
    if options.worker:
        work(options)
        return
    counts = [int(item) for item in options.devices.split(",")]
    cores = len(os.sched_getaffinity(0))
    if max(counts) > cores:
        sys.exit(f"{max(counts)} devices asked for, and there are {cores} cores")
    found = {count: compare(options, count) for count in counts}
    rates = {count: one for count, (one, _) in found.items()}
    report(options, counts, rates, [hidden for _, hidden in found.values()])


def compare(options: argparse.Namespace, count: int) -> tuple[dict[str, list[float]], float | None]:
    """Images per second of each contender, turn by turn, on `count` devices, and what is hidden."""
    teams = {name: Team(name, count, options) for name in options.contenders}
    rates: dict[str, list[float]] = {name: [] for name in teams}
    try:
        for turn in range(options.turns + 1):
            for name, team in teams.items():
                found = team.rate()
                if turn:
                    rates[name].append(found)
            print(f"{count} devices, turn {turn}/{options.turns}", file=sys.stderr, flush=True)
        talks = "purine" in teams and count > 1
        hidden = teams["purine"].ask("hidden")[0] if talks else None
    finally:
        for team in teams.values():
            team.end()
    line = ", ".join(f"{name} {statistics.median(found):.1f}" for name, found in rates.items())
    print(f"{options.net}, {count} devices, images/s: {line}", flush=True)
    return rates, hidden


class Team:
    """The processes of one contender."""

    def __init__(self, name: str, count: int, options: argparse.Namespace) -> None:
        self.name, self.count, self.options = name, count, options
        command = [sys.executable, __file__, "--worker", name, "--net", options.net]
        command += ["--batch", str(options.batch), "--count", str(count)]
        command += ["--topology", options.topology, "--port", str(free_port())]
        ranks = 1 if name == "purine" else count
        self.workers = [
            subprocess.Popen(
                [*command, "--rank", str(rank)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
            for rank in range(ranks)
        ]
        self.ask("2")
        once = max(self.ask("2"))
        self.steps = max(2, round(options.seconds / max(once, 1e-4)))

    def ask(self, question: str) -> list[float]:
        """The answers of all workers: to a number of steps, the seconds of each step."""
        for worker in self.workers:
            assert worker.stdin is not None
            print(question, file=worker.stdin, flush=True)
        answers = []
        for worker in self.workers:
            assert worker.stdout is not None
            answer = worker.stdout.readline()
            if not answer:
                sys.exit(f"a worker of {self.name} ended with {worker.wait()}")
            answers.append(float(answer))
        return answers

    def rate(self) -> float:
        seconds = self.ask(str(self.steps))
        batch = self.options.batch
        if self.name == "limit":
            return sum(batch / one for one in seconds)
        return batch * self.count / max(seconds)

    def end(self) -> None:
        for worker in self.workers:
            worker.kill()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def work(options: argparse.Namespace) -> None:
    makers = {"purine": purine_steps, "limit": purine_steps, "ddp": ddp_steps}
    if options.worker != "purine" or options.count == 1:
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[options.rank]})
    run, hidden = makers[options.worker](options)
    for line in sys.stdin:
        if line.strip() == "hidden":
            assert hidden is not None
            print(hidden(), flush=True)
            continue
        count = int(line)
        run(1)
        begin = time.perf_counter()
        run(count)
        print((time.perf_counter() - begin) / count, flush=True)


Worker = tuple[Callable[[int], None], Callable[[], float] | None]
"""What makes so many steps, and what tells how much of its communication was hidden."""


def purine_steps(options: argparse.Namespace) -> Worker:
    import torch

    import purine as pu

    torch.set_num_threads(1)
    setting = NETS[options.net][0]
    net = pu.zoo.NETS[options.net](
        batch=options.batch, classes=setting.classes, **setting.arguments
    )
    step = pu.solvers.sgd(pu.backward(net), lr=LR, momentum=MOMENTUM, weight_decay=DECAY)
    step = pu.prune(step, ["loss"])
    if options.worker == "purine":
        devices = f"cpu:0-{options.count - 1}"
        step = pu.parallel.replicate(step, devices, topology=options.topology)
    rows = [part.numpy() for part in samples(setting)]
    source = pu.data.ArraySource(*rows, classes=setting.classes)
    data = pu.data.DataSet("memory", source)
    step = pu.layout(step, "channels-last")
    run = pu.Run(step, data=data, seed=0, threads=1)

    def steps(count: int) -> None:
        for result in run.steps(count):
            assert result.loss == result.loss

    def hidden() -> float:
        from purine.trace.overlap import overlap

        run.close()
        with pu.Run(step, data=data, seed=0, threads=1, record=True) as other:
            for result in other.steps(RECORDED):
                assert result.loss == result.loss
            return overlap(other.trace, skip=SKIPPED).hidden

    return steps, hidden


def ddp_steps(options: argparse.Namespace) -> Worker:
    import torch
    import torch.distributed as dist
    from rivals import RIVALS, loss_of
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    setting = NETS[options.net][0]
    inputs, labels = samples(setting)
    model = RIVALS[options.net](setting.sample[0], setting.classes)
    model = model.to(memory_format=torch.channels_last)
    inputs = inputs.contiguous(memory_format=torch.channels_last)
    if options.count > 1:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        address = f"tcp://127.0.0.1:{options.port}"
        dist.init_process_group(
            "gloo", init_method=address, rank=options.rank, world_size=options.count
        )
        model = DistributedDataParallel(model, static_graph=True, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=LR, momentum=MOMENTUM, weight_decay=DECAY, fused=True
    )
    position = options.rank * options.batch % (setting.count - options.batch + 1)

    def steps(count: int) -> None:
        nonlocal position
        for _ in range(count):
            rows = slice(position, position + options.batch)
            position = (position + options.batch) % (setting.count - options.batch + 1)
            optimizer.zero_grad(set_to_none=options.count == 1)
            loss = loss_of(model(inputs[rows]), labels[rows])
            loss.backward()
            optimizer.step()
            value = loss.item()
            assert value == value

    return steps, None


def report(
    options: argparse.Namespace,
    counts: list[int],
    rates: dict[int, dict[str, list[float]]],
    hidden: list[float | None],
) -> None:
    medians = {
        name: [statistics.median(rates[count][name]) for count in counts]
        for name in options.contenders
    }
    print(f"\n{options.net}, batch {options.batch} for each device, images/s")
    print(f"{'devices':>8}" + "".join(f"{name:>26}" for name in options.contenders))
    for place, count in enumerate(counts):
        cells = []
        for name in options.contenders:
            low, high = min(rates[count][name]), max(rates[count][name])
            cells.append(f"{medians[name][place]:.1f} ({low:.1f} to {high:.1f})")
        part = hidden[place]
        note = "" if part is None else f"  {part:.1%} of transfers and reductions hidden"
        print(f"{count:8}" + "".join(f"{cell:>26}" for cell in cells) + note)
    result: dict[str, object] = {
        "net": options.net,
        "batch": options.batch,
        "devices": counts,
        "images_per_second": {n: [round(v, 2) for v in found] for n, found in medians.items()},
    }
    if "purine" in medians:
        first = medians["purine"][0] / counts[0]
        result["hidden"] = [None if part is None else round(part, 4) for part in hidden]
        result["acceleration"] = [round(value / first, 3) for value in medians["purine"]]
        for rival, key in (("limit", "limit_fraction"), ("ddp", "ddp_ratio")):
            if rival in medians:
                turns = zip(rates[counts[-1]]["purine"], rates[counts[-1]][rival], strict=True)
                result[key] = round(statistics.median(a / b for a, b in turns), 4)
    if options.picture:
        options.picture.write_text(picture(options, counts, medians))
    print(json.dumps(result))


def picture(options: argparse.Namespace, counts: list[int], medians: dict[str, list[float]]) -> str:
    """The acceleration over one device, with the diagonal of perfect scaling."""
    width, height, margin = 560, 420, 56
    most = max(counts)
    base = medians["limit" if "limit" in medians else "purine"][0] / counts[0]
    colours = {"purine": "#7b2d8b", "limit": "#888888", "ddp": "#d9822b"}

    def point(count: float, value: float) -> str:
        x = margin + (width - 2 * margin) * count / most
        y = height - margin - (height - 2 * margin) * value / most
        return f"{x:.1f},{y:.1f}"

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{width / 2}" y="28" text-anchor="middle" font-size="16">'
        f"{options.net}, batch {options.batch} for each device</text>",
        f'<polyline points="{point(0, 0)} {point(most, most)}" stroke="#cccccc" fill="none" '
        'stroke-dasharray="4 4"/>',
        f'<polyline points="{point(0, most)} {point(0, 0)} {point(most, 0)}" stroke="black" '
        'fill="none"/>',
        f'<text x="{width / 2}" y="{height - 14}" text-anchor="middle">devices (one core each)'
        "</text>",
        f'<text transform="translate(18,{height / 2}) rotate(-90)" text-anchor="middle">'
        "acceleration</text>",
    ]
    for count in counts:
        x, y = point(count, 0).split(",")
        parts.append(f'<text x="{x}" y="{float(y) + 18}" text-anchor="middle">{count}</text>')
        x, y = point(0, count).split(",")
        parts.append(
            f'<text x="{float(x) - 8}" y="{float(y) + 4}" text-anchor="end">{count}</text>'
        )
    for row, (name, found) in enumerate(medians.items()):
        places = [point(c, v / base) for c, v in zip(counts, found, strict=True)]
        colour = colours[name]
        parts.append(
            f'<polyline points="{" ".join(places)}" stroke="{colour}" stroke-width="2" '
            'fill="none"/>'
        )
        for place in places:
            x, y = place.split(",")
            parts.append(f'<circle cx="{x}" cy="{y}" r="3.5" fill="{colour}"/>')
        top = 60 + 20 * row
        parts.append(
            f'<rect x="{margin + 16}" y="{top - 10}" width="12" height="12" fill="{colour}"/>'
        )
        parts.append(f'<text x="{margin + 34}" y="{top}">{name}</text>')
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    main()
