"""How fast are pipelines of training on the cores of one machine: Purine against PyTorch?

Contenders, each with one core for each device: Purine, one process whose devices are cores
(`pipeline`), and `torch.distributed.pipelining` over Gloo with a process for each (see
`rival_pipeline.py`). For each number of devices and each schedule both are started first and then
take turns, so that whatever else the machine does hits both alike. Reported are medians over turns.
Both are cut into stages by the times that ops took in a recorded run of Purine's pipeline, which
was cut by those of a recorded run on one core.

`bubble` is the part of all devices' time in which a recorded run of Purine's did not compute, the
median over iterations; it dispatches ops in segments, as the runs that are timed do.
`bubble_formula` is what textbooks say for stages that take equally long, `bubble_schedule` what the
schedule gives on paper with the times that its units took in a run recorded op by op, sums of
gradients and updates included. What that is above the formula is due to unequal stages; what was
measured above it, to the runtime and to whatever else the machine did. PyTorch's zero bubble
schedule has two stages on each device, ours has one. Memory is the peak of a process beyond what it
held after its imports; predicted is what `peak_memory` says of each device. The last line is JSON.

    python benchmarks/pipeline.py --net resnet50 --stages 2,4
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from scaling import free_port
from step import DECAY, LR, MOMENTUM, SETTINGS, Setting, held, samples

if TYPE_CHECKING:
    from purine.graph import Graph, Op
    from purine.parallel.schedule import Letter, Schedule, Unit
    from purine.trace.events import Event
    from purine.trace.trace import Trace

NETS = {"googlenet": 4, "gpt2": 1, "resnet50": 2}
"""Each with the samples of a micro-batch."""
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero-bubble")
CONTENDERS = ("purine", "torch")
CHUNKS = 2
"""Stages of each device where they are interleaved."""
RECORDED = 6
"""Iterations of a recorded run; twice as many where idle time is taken from it."""
PATIENCE = 600.0
"""Seconds after which a worker that does not answer counts as stuck."""
LAST_WORDS = 5.0
"""The same, where another one has failed already."""
BLOCKS: Mapping[str, Sequence[tuple[str, ...]]] = {
    "googlenet": [
        *(("conv1",), ("pool1",), ("conv2/reduce",), ("conv2",), ("pool2",)),
        *((f"inception3{letter}",) for letter in "ab"),
        ("pool3",),
        *((f"inception4{letter}",) for letter in "abcde"),
        ("pool4",),
        *((f"inception5{letter}",) for letter in "ab"),
        *(("pool5",), (), ("drop",), ("fc", "loss")),
    ],
    "resnet50": [
        *(("conv1",), ("pool1",)),
        *(
            (f"stage{stage}/block{block}",)
            for stage, blocks in enumerate((3, 4, 6, 3), 1)
            for block in range(1, blocks + 1)
        ),
        *(("pool5",), (), ("fc", "loss")),
    ],
    "gpt2": [
        ("embedding", "position", "drop"),
        *((f"layer{layer}",) for layer in range(1, 13)),
        ("ln", "scores", "loss"),
    ],
}
"""What Purine calls the children of each rival."""


class Failed(Exception):
    """A contender cannot do what was asked."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--net", choices=sorted(NETS), default="resnet50")
    parser.add_argument("--stages", default="2", help="numbers of devices, for example 2,4")
    parser.add_argument("--schedules", nargs="+", choices=SCHEDULES, default=SCHEDULES)
    parser.add_argument("--micro", type=int, help="micro-batches; 4 for each device")
    parser.add_argument("--batch", type=int, help="samples of a micro-batch")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="length of a turn, about")
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=CONTENDERS)
    parser.add_argument("--worker", choices=CONTENDERS, help=argparse.SUPPRESS)
    parser.add_argument("--schedule", choices=SCHEDULES, help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--count", type=int, default=2, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--times", default="", help=argparse.SUPPRESS)
    parser.add_argument("--cut", type=int, nargs="*", default=(), help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.batch = options.batch or NETS[options.net]
    if options.worker:
        work(options)
        return
    counts = [int(item) for item in options.stages.split(",")]
    cores = len(os.sched_getaffinity(0))
    if not 2 <= min(counts) <= max(counts) <= cores:
        sys.exit(f"stages {options.stages} asked for: 2 to {cores}, the number of cores, can be")
    with tempfile.TemporaryDirectory() as folder:
        options.times = str(Path(folder) / "times.json")
        alone = measured_times(options)
        rows = []
        for count, schedule in itertools.product(counts, options.schedules):
            times = times_in_place(options, count, schedule, alone)
            Path(options.times).write_text(json.dumps(times), encoding="utf-8")
            rows.append(compare(options, count, schedule))
    report(options, rows)


def measured_times(options: argparse.Namespace) -> Mapping[str, float]:
    """The seconds of each op of a micro-batch's step on one core, by which stages are cut."""
    import torch

    import purine as pu

    torch.set_num_threads(1)
    options.micro = options.micro or 0
    data = data_of(options, setting_of(options))
    step = step_of(options.net, options.batch)
    with pu.Run(step, data=data, seed=0, threads=1, record=True) as run:
        for result in run.steps(RECORDED):
            assert result.loss == result.loss
        return run.trace.times()


def times_in_place(
    options: argparse.Namespace, count: int, schedule: str, times: Mapping[str, float]
) -> Mapping[str, float]:
    """The same in a pipeline that was cut by other times: beside others, and with sums."""
    import purine as pu

    row = {"count": count, "schedule": schedule, "micro": options.micro or 4 * count}
    options = argparse.Namespace(**{**vars(options), **row})
    graph = pipeline_of(options, times)
    data = data_of(options, setting_of(options))
    with pu.Run(graph, data=data, seed=0, threads=1, record=True) as run:
        for result in run.steps(RECORDED):
            assert result.loss == result.loss
        return pu.parallel.times_of_step(graph, run.trace.times())


def times_of(options: argparse.Namespace) -> Mapping[str, float]:
    found: dict[str, float] = json.loads(Path(options.times).read_text(encoding="utf-8"))
    return found


def data_of(options: argparse.Namespace, setting: Setting) -> Any:
    """The samples as a data set."""
    import purine as pu

    names = ("tokens", "targets") if options.net == "gpt2" else ("image", "label")
    rows = [part.numpy() for part in samples(setting)]
    source = pu.data.ArraySource(*rows, names=names, classes=setting.classes)
    return pu.data.DataSet("memory", source)


def compare(options: argparse.Namespace, count: int, schedule: str) -> dict[str, Any]:
    """A row of the table: both contenders with one schedule on `count` devices."""
    micro = options.micro or 4 * count
    row: dict[str, Any] = {"stages": count, "schedule": schedule, "micro": micro}
    row |= dict.fromkeys((*(f"{name}_ms" for name in CONTENDERS), "torch_ratio"))
    teams = {name: Team(name, options, count, schedule, micro) for name in options.contenders}
    times: dict[str, list[float]] = {name: [] for name in teams}

    def all_that_can(action: Callable[[Team], object]) -> None:
        for name, team in list(teams.items()):
            try:
                action(team)
            except Failed as error:
                row[f"{name}_error"] = str(error)
                print(f"{name} cannot do {schedule} on {count}: {error}", flush=True)
                teams.pop(name).end()

    try:
        all_that_can(lambda team: team.measure_once(options.seconds))
        all_that_can(lambda team: team.ask(str(team.steps)))
        for turn in range(1, options.turns + 1):
            all_that_can(lambda team: times[team.name].append(max(team.ask(str(team.steps)))))
            latest = ", ".join(f"{name} {times[name][-1] * 1e3:.1f} ms" for name in teams)
            print(f"{count} stages, {schedule}, turn {turn}/{options.turns}: {latest}", flush=True)
        for name in teams:
            low, middle, high = (f(times[name]) * 1e3 for f in (min, statistics.median, max))
            row[f"{name}_ms"] = round(middle, 2)
            row[f"{name}_spread_ms"] = [round(low, 2), round(high, 2)]
        all_that_can(
            lambda team: row.update(
                {f"{team.name}_peak_mb": [round(b / 1e6, 1) for b in team.ask("memory")]}
            )
        )
        all_that_can(lambda team: row.update(team.ask("facts")[0]))
    finally:
        for team in teams.values():
            team.end()
    if all(row[f"{name}_ms"] for name in CONTENDERS):
        turns = zip(times["torch"], times["purine"], strict=True)
        row["torch_ratio"] = round(statistics.median(a / b for a, b in turns), 4)
    print(json.dumps(row), flush=True)
    return row


class Team:
    """The processes of one contender."""

    def __init__(
        self, name: str, options: argparse.Namespace, count: int, schedule: str, micro: int
    ) -> None:
        self.name = name
        self.steps = 2
        command = [sys.executable, __file__, "--worker", name, "--net", options.net]
        command += ["--batch", str(options.batch), "--micro", str(micro), "--count", str(count)]
        command += ["--schedule", schedule, "--port", str(free_port())]
        command += ["--times", options.times]
        if name == "torch":
            step = step_of(options.net, options.batch)
            interleaved = schedule in ("interleaved", "zero-bubble")
            stages = count * CHUNKS if interleaved else count
            cut = nearest_cut(options.net, step, stages, times_of(options))
            command += ["--cut", *map(str, cut)]
        self.workers = [
            subprocess.Popen(
                [*command, "--rank", str(rank)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
            for rank in range(1 if name == "purine" else count)
        ]

    def measure_once(self, length: float) -> None:
        """Choose how many steps a turn of about `length` seconds has."""
        self.ask("2")
        self.steps = max(2, round(length / max(self.ask("2"))))

    def ask(self, question: str) -> list[Any]:
        """The answers of all workers; once one has failed the others have seconds to say why."""
        for worker in self.workers:
            assert worker.stdin is not None
            try:
                worker.stdin.write(f"{question}\n".encode())
                worker.stdin.flush()
            except BrokenPipeError:
                continue  # what it said before it ended is still to be read
        waiting = {w.stdout: rank for rank, w in enumerate(self.workers) if w.stdout is not None}
        answers: list[Any] = [None] * len(self.workers)
        errors: list[str] = []
        while waiting:
            ready = select.select(list(waiting), [], [], LAST_WORDS if errors else PATIENCE)[0]
            if not ready:
                errors.append(f"no answer from ranks {sorted(waiting.values())}")
                break
            for stream in ready:
                rank = waiting.pop(stream)
                line = stream.readline()
                if not line:
                    errors.append(f"rank {rank} ended with {self.workers[rank].wait()}")
                    continue
                answers[rank] = json.loads(line)
                if isinstance(answers[rank], dict) and "error" in answers[rank]:
                    errors.append(f"rank {rank}: {answers[rank]['error']}")
        if errors:
            raise Failed("; ".join(errors))
        return answers

    def end(self) -> None:
        for worker in self.workers:
            worker.kill()
            worker.wait()


def nearest_cut(net: str, step: Graph, stages: int, times: Mapping[str, float]) -> list[int]:
    """The children of the rival with which stages behind the first begin.

    Each is where about as much time is spent before it as before Purine's.
    """
    from purine.parallel.cut import balanced_cut

    home = {prefix: child for child, names in enumerate(BLOCKS[net]) for prefix in names}
    children, ours = [0.0] * len(BLOCKS[net]), [0.0] * stages
    for name, stage in balanced_cut(step, stages, times=times).items():
        spent = times.get(name, 0.0)
        ours[stage] += spent
        children[_child(name, home)] += spent
    before = [0.0, *accumulate(children)]
    firsts = [0]
    for left, goal in zip(range(stages - 1, 0, -1), accumulate(ours), strict=False):
        gap = {
            child: abs(before[child] - goal)
            for child in range(firsts[-1] + 1, len(children) - left + 1)
        }
        firsts.append(min(gap, key=gap.__getitem__))
    return firsts[1:]


def _child(name: str, home: Mapping[str, int]) -> int:
    """The child that has the longest part of an op's name; the data belongs to the first."""
    parts = name.removeprefix("grad/").split("/")
    prefixes = ("/".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((home[prefix] for prefix in prefixes if prefix in home), 0)


def work(options: argparse.Namespace) -> None:
    """Answer questions: a number asks for that many steps, `memory` for the peak, `facts`."""
    import torch
    import torch._dynamo

    if options.worker == "purine":
        import purine  # noqa: F401
    else:
        import rival_pipeline  # noqa: F401

        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[options.rank]})
    torch.set_num_threads(1)
    torch.randn(64, 64) @ torch.randn(64, 64)
    before = held()
    try:
        run, facts = (purine_worker if options.worker == "purine" else torch_worker)(options)
        for line in sys.stdin:
            question = line.strip()
            if question == "memory":
                answer: object = held("VmHWM") - before
            elif question == "raw":
                answer = held("VmHWM")
            elif question == "facts":
                answer = facts()
            else:
                run(1)
                begin = time.perf_counter()
                run(int(question))
                answer = (time.perf_counter() - begin) / int(question)
            print(json.dumps(answer), flush=True)
    except Exception as error:
        root = error.__cause__ or error
        reason = " ".join(str(root).split())[:200]
        print(json.dumps({"error": f"{type(root).__name__}: {reason}"}), flush=True)
        os._exit(1)  # peers may never answer, so nothing waits for them


def setting_of(options: argparse.Namespace) -> Setting:
    """The net's, with samples enough for a step."""
    setting = SETTINGS[options.net]
    return replace(setting, count=max(setting.count, options.micro * options.batch))


def step_of(net: str, batch: int) -> Graph:
    """Purine's step of one micro-batch."""
    import purine as pu

    setting = SETTINGS[net]
    named = {"classes": setting.classes} if net != "gpt2" else {}
    graph = pu.zoo.NETS[net](batch=batch, **named, **setting.arguments)
    step = pu.solvers.sgd(pu.backward(graph), lr=LR, momentum=MOMENTUM, weight_decay=DECAY)
    return pu.layout(pu.prune(step, ["loss"]), "contiguous" if net == "gpt2" else "channels-last")


def pipeline_of(options: argparse.Namespace, times: Mapping[str, float]) -> Graph:
    """Purine's pipeline, with stages that take equally long by the times of ops."""
    import purine as pu

    return pu.parallel.pipeline(
        step_of(options.net, options.batch),
        devices=f"cpu:0-{options.count - 1}",
        micro=options.micro,
        schedule=options.schedule,
        chunks=CHUNKS if options.schedule == "interleaved" else 1,
        times=times,
    )


Worker = tuple[Callable[[int], object], Callable[[], dict[str, Any]]]
"""What makes so many steps, and what tells of the pipeline."""


def purine_worker(options: argparse.Namespace) -> Worker:
    import purine as pu

    step = step_of(options.net, options.batch)
    chunks = CHUNKS if options.schedule == "interleaved" else 1
    graph = pipeline_of(options, times_of(options))
    data = data_of(options, setting_of(options))
    run = pu.Run(graph, data=data, seed=0, threads=1)

    def steps(count: int) -> None:
        for result in run.steps(count):
            assert result.loss == result.loss

    def facts() -> dict[str, Any]:
        from purine.lowering import lower, options_for
        from purine.parallel.schedule import named_schedule

        def recorded(record: bool | Literal["segments"], steps: int) -> Trace:
            with pu.Run(graph, data=data, seed=0, threads=1, record=record) as other:
                for result in other.steps(steps):
                    assert result.loss == result.loss
                return other.trace

        run.close()
        plan = named_schedule(options.schedule, options.count, options.micro, chunks=chunks)
        events = recorded(True, RECORDED).events
        lasting, sent = unit_times(step, graph, plan, events, times_of(options))
        idle = idle_parts(recorded("segments", 2 * RECORDED).events, options.count)
        formula = pu.parallel.bubble_formula(
            options.schedule, options.count, options.micro, chunks=chunks
        )
        predicted = lower(graph, options_for(graph)).peak_memory()
        return {
            "bubble": round(statistics.median(idle), 4),
            "bubble_spread": [round(min(idle), 4), round(max(idle), 4)],
            "bubble_formula": round(formula, 4),
            "bubble_schedule": round(schedule_bubble(plan, lasting, sent), 4),
            "predicted_peak_mb": [round(value / 1e6, 1) for value in predicted.values()],
        }

    return steps, facts


def idle_parts(events: Sequence[Event], devices: int) -> list[float]:
    """The part of all devices' time without compute, from each iteration's end to the next."""
    ends: dict[int, int] = {}
    for event in events:
        ends[event.iteration] = max(ends.get(event.iteration, 0), event.end)
    found = []
    for begin, end in itertools.pairwise(sorted(ends.values())):
        busy = sum(
            max(0, min(event.end, end) - max(event.start, begin))
            for event in events
            if event.lane.startswith("compute")
        )
        found.append(1 - busy / ((end - begin) * devices))
    return found


def unit_times(
    step: Graph, graph: Graph, plan: Schedule, events: Sequence[Event], times: Mapping[str, float]
) -> tuple[Mapping[Unit, float], Mapping[Unit, float]]:
    """How long each unit of a schedule computed, and how long until others have what they wait for.

    Medians over iterations but the first. A backward has its gradients of weights behind what
    others wait for. A sum of gradients belongs to the unit that made the last part of it, and what
    is done once to the last unit of its device.
    """
    from purine.analysis.infer import check
    from purine.parallel.cut import balanced_cut
    from purine.parallel.flow import flow_of, weight_ops
    from purine.parallel.halves import halve
    from purine.parallel.schedule import Unit

    step = check(step)
    halves = halve(step)
    flow = flow_of(step, halves)
    stage = balanced_cut(step, plan.stages, times=times)
    forward = set(flow.forward)
    weights = weight_ops(step, flow, halves, stage)

    def unit_of(op: Op) -> tuple[Unit, bool]:
        """The unit of an op, and whether others may wait for it."""
        adds = op.kind == "AddScaled"
        if adds:
            op = graph.producers[op.inputs[1]]
        prefix, _, name = op.name.partition("/") if plan.micro > 1 else ("micro0", "/", op.name)
        if name not in stage:
            return plan.rows[int(op.location.device.removeprefix("cpu:"))][-1], False
        letter: Letter = "F" if name in forward else "B"
        if name in weights and plan.split:
            letter = "W"
        awaited = not adds and name not in weights
        return Unit(letter, int(prefix.removeprefix("micro")), stage[name]), awaited

    spent: dict[Unit, dict[int, float]] = {unit: defaultdict(float) for unit in plan.device_of}
    until: dict[Unit, dict[int, float]] = {unit: defaultdict(float) for unit in plan.device_of}
    for event in events:
        if event.iteration and event.lane.startswith("compute") and event.op in graph.ops:
            unit, awaited = unit_of(graph.ops[event.op])
            spent[unit][event.iteration] += event.end - event.start
            until[unit][event.iteration] += (event.end - event.start) * awaited
    lasting, sent = (
        {unit: statistics.median(found.values() or [0]) for unit, found in each.items()}
        for each in (spent, until)
    )
    return lasting, sent


def schedule_bubble(
    plan: Schedule, lasting: Mapping[Unit, float], sent: Mapping[Unit, float]
) -> float:
    """The part of the devices' time that is idle where each unit takes its own time.

    What others wait for is `sent` so long after a unit's begin. It is that of an iteration that
    follows others: a device begins it once its own part of the one before is done.
    """
    free = [0.0] * plan.devices
    order = plan.times()  # whatever a unit waits for starts before it, whoever is slow
    before, end = 0.0, 0.0
    for _ in range(plan.devices + 1):
        ends: dict[Unit, float] = {}
        for unit in sorted(order, key=order.__getitem__):
            device = plan.device_of[unit]
            begin = max(free[device], *(ends[other] for other in plan.needs(unit)), 0.0)
            ends[unit], free[device] = begin + sent[unit], begin + lasting[unit]
        before, end = end, max(free)
    return 1 - sum(lasting.values()) / ((end - before) * plan.devices)


def torch_worker(options: argparse.Namespace) -> Worker:
    from rival_pipeline import Plan, rival_steps

    setting = setting_of(options)
    plan = Plan(
        net=options.net,
        schedule=options.schedule,
        cut=options.cut,
        rank=options.rank,
        ranks=options.count,
        port=options.port,
        micro=options.micro,
        batch=options.batch,
    )
    sizes = setting.sample[0], setting.classes
    steps = rival_steps(plan, *samples(setting), sizes, lr=LR, momentum=MOMENTUM, decay=DECAY)
    return steps, dict


def report(options: argparse.Namespace, rows: Sequence[Mapping[str, Any]]) -> None:
    print(f"\n{options.net}, {options.batch} samples in a micro-batch")
    print("idle: measured (by the schedule with its measured times, by the formula)")
    head = ("purine ms", "torch ms", "ratio", "idle", "purine MB (predicted)", "torch MB")
    print(
        f"{'stages':>6} {'schedule':12}{'micro':>6}"
        f"{head[0]:>11}{head[1]:>11}{head[2]:>7}{head[3]:>22}{head[4]:>26}  {head[5]}"
    )
    for row in rows:
        idle = ours = "-"
        if "bubble" in row:
            paper = f"{row['bubble_schedule']:.1%}, {row['bubble_formula']:.1%}"
            idle = f"{row['bubble']:.1%} ({paper})"
            predicted = "+".join(f"{value:.0f}" for value in row["predicted_peak_mb"])
            ours = f"{row['purine_peak_mb'][0]:.0f} ({predicted})"
        theirs = "+".join(f"{value:.0f}" for value in row.get("torch_peak_mb", ())) or "-"
        cells = (row.get("purine_ms"), row.get("torch_ms"), row["torch_ratio"])
        milliseconds = [f"{value:.1f}" if value else "-" for value in cells[:2]]
        ratio = f"{cells[2]:.3f}" if cells[2] else "-"
        print(
            f"{row['stages']:6} {row['schedule']:12}{row['micro']:6}"
            f"{milliseconds[0]:>11}{milliseconds[1]:>11}{ratio:>7}{idle:>22}{ours:>26}  {theirs}"
        )
        for name in CONTENDERS:
            if f"{name}_error" in row:
                print(f"{'':7}{name}: {row[f'{name}_error']}")
    print(json.dumps({"net": options.net, "batch": options.batch, "rows": rows}))


if __name__ == "__main__":
    main()
