"""How well does data parallel training scale over the cores of one machine?

Contenders, each with one core per device and the same batch on each:

- `purine`: one process whose devices are cores (`replicate`);
- `hosts`, with `--hosts`: the same step with a process (host) for each device, over transport
  `shm`, with parameters in memory that they share;
- `fixed` and `floating`, with `--micro`: `purine` with the batch of a device in so many
  micro-batches, which stay at their device or go to whichever is free, with the same bits;
- `late1` and `late2`, with `--late`: `purine` whose parameters are read one or two iterations late
  (`delay`), and `floating1` and `floating2`, with `--micro` too: the same of `floating`;
- `limit`: as many processes that train by themselves and never talk, added up;
- `synchronous`: the same processes, which wait for each other in each step, before the update of
  the parameter whose gradient is the last. They exchange nothing. Steps that depend on each other
  cannot be faster than the slowest device of each step, so this is the limit of synchronous SGD;
- `ddp`: PyTorch's DistributedDataParallel over Gloo, tuned (channels-last, fused SGD, static graph,
  gradients as views of buckets).

For each number of devices all contenders are started first and then take turns, so that whatever
else the machine does hits all of them alike. All processes are forked from this one, which has
imported torch and built the steps. With `--starts` all of this is repeated with new processes.
Reported are medians over turns, and over starts medians of these. `synchronous_ratio` is the rate
of `purine` and `hosts` over the synchronous limit in the same turn. With `--hidden` there is a
recorded run behind the turns: `hidden` is the part of the time of Purine's transfers and reductions
that no device waited for. The last line is JSON, and a picture of the acceleration can be drawn.

    python benchmarks/scaling.py --net googlenet --devices 1,2 --hosts
"""

from __future__ import annotations

import argparse
import json
import os
import select
import socket
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from curve import picture
from forked import Forked, apart
from step import DECAY, LR, MOMENTUM, SETTINGS, Setting, samples

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

    from purine.graph import Graph
    from purine.parallel.reduce import Topology

NETS = {
    "mlp": (SETTINGS["mlp"], 32),
    "lenet": (SETTINGS["lenet"], 32),
    "nin": (SETTINGS["nin"], 8),
    "googlenet": (SETTINGS["googlenet"], 4),
    "alexnet": (Setting((3, 227, 227), 1000, {"dropout": 0.0}, count=64), 8),
    "resnet50": (SETTINGS["resnet50"], 4),
}
"""Each with the batch of one device."""
LATE = {"late1": 1, "late2": 2, "floating1": 1, "floating2": 2}
"""By contender how many iterations late it reads parameters."""
FLOATING = ("floating", "floating1", "floating2")
MICRO = ("fixed", *FLOATING)
ALONE = ("purine", "late1", "late2", *MICRO)
"""In one process."""
OURS = (*ALONE, "hosts")
CONTENDERS = ("purine", "hosts", *ALONE[1:], "limit", "synchronous", "ddp")
SYNCHRONOUS = "synchronous"
AHEAD = 2
"""Steps behind those that count: what late reads begin early is in flight at both ends."""
PATIENCE = 120.0
"""Seconds that a device waits for another in a step."""
UNIT = 2 << 20
"""Bytes in which parameters go between hosts that share memory."""
CALM = 20
"""A rate that much smaller than that of DDP: late reads diverge sooner on random labels."""
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
    parser.add_argument("--starts", type=int, default=1, help="separate starts of all workers")
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS)
    parser.add_argument("--hosts", action="store_true", help="with a process for each device too")
    parser.add_argument("--micro", type=int, default=0, help="micro-batches of a device, to float")
    parser.add_argument("--late", action="store_true", help="with parameters read late too")
    parser.add_argument("--picture", type=Path, help="where to write the curve, as SVG")
    parser.add_argument("--hidden", action="store_true", help="record what communication costs")
    options = parser.parse_args()
    options.batch = options.batch or NETS[options.net][1]
    for name in ("turns", "starts", "batch"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} is {getattr(options, name)}; expected 1 or more")
    extra = {"hosts": options.hosts, **dict.fromkeys(MICRO, options.micro > 0)}
    extra |= {name: options.late and extra.get(name, True) for name in LATE}
    asked = options.contenders or [name for name in CONTENDERS if extra.get(name, True)]
    options.contenders = [n for n in CONTENDERS if n in asked or extra.get(n, False)]
    if not options.micro and not set(MICRO).isdisjoint(options.contenders):
        parser.error(f"{', '.join(MICRO)} need --micro")
    if options.micro and options.batch % options.micro:
        parser.error(f"--micro {options.micro} does not divide the batch, {options.batch}")
    counts = [int(item) for item in options.devices.split(",")]
    cores = len(os.sched_getaffinity(0))
    if max(counts) > cores:
        sys.exit(f"{max(counts)} devices asked for, and there are {cores} cores")
    os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # of numpy
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the driver has threads, which no fork survives
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    found = {count: compare(options, count) for count in counts}
    rates = {count: one for count, (one, _) in found.items()}
    report(options, counts, rates, [hidden for _, hidden in found.values()])


Rates = dict[str, list[list[float]]]
"""By contender its images per second, by start and turn."""


def compare(options: argparse.Namespace, count: int) -> tuple[Rates, float | None]:
    """Images per second of each contender on `count` devices, and what is hidden."""
    rates: Rates = {name: [] for name in options.contenders}
    parts = []
    for start in range(options.starts):
        which = f" of start {start + 1}/{options.starts}" if options.starts > 1 else ""
        found, hidden = take_turns(options, count, which)
        for name, turns in found.items():
            rates[name].append(turns)
        parts += [] if hidden is None else [hidden]
        line = ", ".join(f"{name} {statistics.median(turns):.1f}" for name, turns in found.items())
        print(f"{options.net}, {count} devices{which}, images/s: {line}", flush=True)
    return rates, statistics.median(parts) if parts else None


def middle(starts: list[list[float]]) -> float:
    """The median over starts of the medians over turns."""
    return statistics.median(statistics.median(turns) for turns in starts)


def spread(starts: list[list[float]]) -> tuple[float, float]:
    """The range over starts of the medians over turns; of a single start, the range over turns."""
    found = starts[0] if len(starts) == 1 else [statistics.median(turns) for turns in starts]
    return min(found), max(found)


def ratio(one: list[list[float]], other: list[list[float]]) -> float:
    """The median ratio of turns, and of starts the median."""
    return middle(
        [[a / b for a, b in zip(*turns, strict=True)] for turns in zip(one, other, strict=True)]
    )


def take_turns(
    options: argparse.Namespace, count: int, which: str
) -> tuple[dict[str, list[float]], float | None]:
    """The rates of one start of all workers, turn by turn, and what is hidden."""
    teams: dict[str, Team] = {}
    rates: dict[str, list[float]] = {name: [] for name in options.contenders}
    try:
        print(f"{count} devices{which}: starting all ...", file=sys.stderr, flush=True)
        for name in options.contenders:
            teams[name] = Team(name, count, options)
            teams[name].send("1 0")  # builds, compiles and runs beside the other teams
        for team in teams.values():
            team.answers()
        for name, team in teams.items():
            team.warm_up()
            print(f"{count} devices{which}: {name} is warm", file=sys.stderr, flush=True)
        for turn in range(1, options.turns + 1):
            for name, team in teams.items():
                rates[name].append(team.rate())
            what = f"{count} devices, turn {turn}/{options.turns}{which}"
            line = ", ".join(f"{name} {found[-1]:.1f}" for name, found in rates.items())
            print(f"{what}: {line}", file=sys.stderr, flush=True)
        talks = options.hidden and "purine" in teams and count > 1
        hidden = teams["purine"].ask("hidden")[0] if talks else None
    finally:
        for team in teams.values():
            team.end()
    return rates, hidden


class Team:
    """The processes of one contender."""

    def __init__(self, name: str, count: int, options: argparse.Namespace) -> None:
        self.name, self.count, self.options = name, count, options
        ranks = 1 if name in ALONE else count
        bells = [os.eventfd(0) for _ in range(count)] if name == SYNCHRONOUS else []
        common = {**vars(options), "worker": name, "count": count, "port": free_port()}
        common["bells"] = ",".join(map(str, bells))
        prepare(argparse.Namespace(**common))
        self.workers = [
            Forked(partial(work, argparse.Namespace(**common, rank=rank))) for rank in range(ranks)
        ]
        for bell in bells:
            os.close(bell)

    def warm_up(self) -> None:
        """Find how many steps a turn has."""
        once = max(self.ask("1 0"))
        self.steps = max(2, round(self.options.seconds / max(once, 1e-4)))

    def ask(self, question: str) -> list[float]:
        """The answers of all workers: to numbers of steps that count and that follow, the seconds
        of each step that counts."""
        self.send(question)
        return self.answers()

    def send(self, question: str) -> None:
        for worker in self.workers:
            worker.ask(question)

    def answers(self) -> list[float]:
        waiting = {worker.answers: worker for worker in self.workers}
        answers: dict[int, float] = {}
        while waiting:  # whoever ends is seen at once, also while others wait for it
            for stream in select.select(list(waiting), [], [])[0]:
                worker, answer = waiting.pop(stream), stream.readline()
                if not answer:
                    sys.exit(f"a worker of {self.name} has ended")
                answers[worker.pid] = float(answer)
        return [answers[worker.pid] for worker in self.workers]

    def rate(self) -> float:
        seconds = self.ask(f"{self.steps} {AHEAD}")
        batch = self.options.batch
        if self.name == "limit":
            return sum(batch / one for one in seconds)
        return batch * self.count / max(seconds)

    def end(self) -> None:
        for worker in self.workers:
            worker.end()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def prepare(options: argparse.Namespace) -> None:
    """Import and build what all workers of a contender have in common, before they are forked."""
    import torch

    import purine  # noqa: F401

    torch.set_num_threads(1)
    samples_of(options.net)
    if options.worker == "ddp":
        model_of(options.net)
    else:
        step_of(options.worker, options.net, options.batch, options.count, *variant(options))


def work(
    options: argparse.Namespace, questions: Iterator[str], tell: Callable[[object], None]
) -> None:
    if options.worker not in ALONE or options.count == 1:
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[options.rank]})
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(options.port)}
    os.environ |= {"RANK": str(options.rank), "WORLD_SIZE": str(options.count)}
    run, hidden = (ddp_steps if options.worker == "ddp" else purine_steps)(options)
    for line in questions:
        if line.strip() == "hidden":
            assert hidden is not None
            tell(hidden())
            continue
        count, behind = map(int, line.split())
        times = [time.perf_counter() for _ in run(1 + count + behind)]
        tell((times[count] - times[0]) / count)


Worker = tuple[Callable[[int], Iterator[None]], Callable[[], float] | None]
"""What makes so many steps, and what tells how much of its communication was hidden."""


@cache
def samples_of(net: str) -> tuple[Tensor, Tensor]:
    inputs, labels = samples(NETS[net][0])
    return inputs, labels


def variant(options: argparse.Namespace) -> tuple[str, int]:
    """What else the step of a contender depends on."""
    return options.topology, options.micro if options.worker in MICRO else 1


@cache
def step_of(worker: str, net: str, batch: int, count: int, topology: Topology, micro: int) -> Graph:
    """The step of a contender, the same in all its processes."""
    return apart(partial(new_step, worker, net, batch, count, topology, micro))


def new_step(
    worker: str, net: str, batch: int, count: int, topology: Topology, micro: int
) -> Graph:
    import purine as pu

    setting = NETS[net][0]
    made = pu.zoo.NETS[net](batch=batch // micro, classes=setting.classes, **setting.arguments)
    step = pu.solvers.sgd(pu.backward(made), lr=LR / CALM, momentum=MOMENTUM, weight_decay=DECAY)
    step = pu.parallel.accumulate(pu.prune(step, ["loss"]), micro, chained=False)
    if worker == "hosts" and count > 1:
        devices = f"host0-{count - 1}:cpu:0"
        step = pu.parallel.replicate(step, devices, topology=topology, unit=UNIT, shared=True)
    elif worker in OURS:
        step = pu.parallel.replicate(step, f"cpu:0-{count - 1}", topology=topology)
        if worker in FLOATING:
            step = pu.parallel.floating(step)
        if worker in LATE:
            step = pu.parallel.delay(step, LATE[worker])
    return pu.layout(step, "channels-last")


def purine_steps(options: argparse.Namespace) -> Worker:
    import purine as pu

    world = None
    if options.worker == "hosts" and options.count > 1:
        from purine.transports.processes import ProcessWorld

        world = ProcessWorld("shm")
    rows = [part.numpy() for part in samples_of(options.net)]
    source = pu.data.ArraySource(*rows, classes=NETS[options.net][0].classes)
    data = pu.data.DataSet("memory", source)
    step = step_of(options.worker, options.net, options.batch, options.count, *variant(options))
    if options.worker == SYNCHRONOUS:
        step = meeting(step, options)
    run = pu.Run(step, data=data, seed=0, threads=1, world=world)

    def steps(count: int) -> Iterator[None]:
        for result in run.steps(count):
            assert result.loss == result.loss
            yield

    def hidden() -> float:
        from purine.trace.overlap import overlap

        run.close()
        with pu.Run(step, data=data, seed=0, threads=1, record=True) as other:
            for result in other.steps(RECORDED):
                assert result.loss == result.loss
            return overlap(other.trace, skip=SKIPPED).hidden

    return steps, hidden


def meeting(step: Graph, options: argparse.Namespace) -> Graph:
    """The step with an op that waits for the other processes before the last gradient is used.

    The op runs on the lane of the device, so data is prefetched as it is without it.
    """
    from torch._subclasses.fake_tensor import FakeTensor

    from purine.graph import Builder
    from purine.registry.kind import Kind, register

    bells = [int(bell) for bell in options.bells.split(",")]
    own, others = bells[options.rank], bells[: options.rank] + bells[options.rank + 1 :]
    missing = 0
    """Rings of others that have not come, over all steps so far."""

    def meet(x: Tensor) -> Tensor:
        nonlocal missing
        if x.is_meta or isinstance(x, FakeTensor):  # shapes and cost, before the first step
            return x.clone()
        for bell in others:
            os.eventfd_write(bell, 1)
        missing += len(others)
        while missing > 0:  # below 0 while others are a step ahead
            if not select.select([own], [], [], PATIENCE)[0]:
                raise TimeoutError(f"process {options.rank} waits for one that does not come")
            missing -= os.eventfd_read(own)
        return x.clone()

    register(Kind("Meet", meet, ("x",)))
    place = {name: number for number, name in enumerate(step.order)}
    updates = {step.producers[state.next] for state in step.states.values() if state.trainable}
    read = [name for update in updates for name in update.inputs if name in step.producers]
    last = max(read, key=lambda name: place[step.producers[name].name])
    builder = Builder(step)
    met = replace(step.blobs[last], name=f"{last}/met")
    builder.add(met)
    for update in updates:
        inputs = tuple(met.name if name == last else name for name in update.inputs)
        builder.ops[update.name] = replace(update, inputs=inputs)
    builder.op(met.name, "Meet", [last], [met.name], location=met.location)
    return builder.graph()


@cache
def model_of(net: str) -> Module:
    import torch
    from rivals import RIVALS
    from torch.nn.parallel import DistributedDataParallel  # noqa: F401

    setting = NETS[net][0]
    model = RIVALS[net](setting.sample[0], setting.classes)
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def ddp_steps(options: argparse.Namespace) -> Worker:
    import torch
    import torch.distributed as dist
    from rivals import loss_of
    from torch.nn.parallel import DistributedDataParallel

    setting, model = NETS[options.net][0], model_of(options.net)
    inputs, labels = samples_of(options.net)
    inputs = inputs.contiguous(memory_format=torch.channels_last)
    if options.count > 1:
        address = f"tcp://127.0.0.1:{options.port}"
        dist.init_process_group(
            "gloo", init_method=address, rank=options.rank, world_size=options.count
        )
        model = DistributedDataParallel(model, static_graph=True, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=LR, momentum=MOMENTUM, weight_decay=DECAY, fused=True
    )
    position = options.rank * options.batch % (setting.count - options.batch + 1)

    def steps(count: int) -> Iterator[None]:
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
            yield

    return steps, None


def report(
    options: argparse.Namespace,
    counts: list[int],
    rates: dict[int, Rates],
    hidden: list[float | None],
) -> None:
    names = options.contenders
    medians = {name: [middle(rates[count][name]) for count in counts] for name in names}
    ranges = {name: [spread(rates[count][name]) for count in counts] for name in names}
    what = f"medians of {options.starts} starts" if options.starts > 1 else "medians of turns"
    print(f"\n{options.net}, batch {options.batch} for each device, images/s, {what}")
    print(f"{'devices':>8}" + "".join(f"{name:>30}" for name in names))
    for place, count in enumerate(counts):
        cells = []
        for name in names:
            low, high = ranges[name][place]
            cells.append(f"{medians[name][place]:.1f} ({low:.1f} to {high:.1f})")
        part = hidden[place]
        note = "" if part is None else f"  {part:.1%} of transfers and reductions hidden"
        print(f"{count:8}" + "".join(f"{cell:>30}" for cell in cells) + note)
    result: dict[str, object] = {
        "net": options.net,
        "batch": options.batch,
        "devices": counts,
        "starts": options.starts,
        "turns": options.turns,
        "images_per_second": {n: [round(v, 2) for v in found] for n, found in medians.items()},
        "range": {
            name: [[round(low, 2), round(high, 2)] for low, high in found]
            for name, found in ranges.items()
        },
    }
    last = rates[counts[-1]]
    if "purine" in medians:
        first = medians["purine"][0] / counts[0]
        result["hidden"] = [None if part is None else round(part, 4) for part in hidden]
        result["acceleration"] = [round(value / first, 3) for value in medians["purine"]]
        for rival, key in (("limit", "limit_fraction"), ("ddp", "ddp_ratio")):
            if rival in medians:
                result[key] = round(ratio(last["purine"], last[rival]), 4)
    if SYNCHRONOUS in medians:
        ratios = {
            name: [round(ratio(rates[n][name], rates[n][SYNCHRONOUS]), 4) for n in counts]
            for name in OURS
            if name in medians
        }
        result["synchronous_ratio"] = ratios
        for name, found in ratios.items():
            print(f"{name} / {SYNCHRONOUS}: {', '.join(f'{value:.3f}' for value in found)}")
    if options.picture:
        title = f"{options.net}, batch {options.batch} for each device"
        options.picture.write_text(picture(title, counts, medians))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
