"""What does one slow worker cost: synchronous training against workers that do not wait?

All contenders train one net on the same number of CPU devices, with the same batch in all. Behind
its part of a step, the thread of a device sleeps: `--rest` times the CPU time that it computed, and
on one device as long as makes it `--slow` times slower than the others. Rest lets devices that
share cores be as quick as if they had cores of their own. With `--wander` the devices take turns in
being slow, so many seconds each. Contenders take turns. Reported are the medians over turns of
images/s, their ratios to synchronous training with equal shares, the staleness of what workers
read, and the seconds of training (without tests) until the test accuracy is `--target`. The last
line is JSON.

With a bound, as in SSP, workers are in the end as slow as the slowest one: a bound pays where
devices are slow now and then.

    python benchmarks/straggler.py --turns 5
    python benchmarks/straggler.py --wander 0.5 --contenders floating ssp easgd
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import Tensor

import purine as pu
from purine.graph import Builder, Graph
from purine.graph.names import gradient_of
from purine.kinds import Net, conv, flatten, global_pool, kind, pool
from purine.parallel import Scheme
from purine.parallel.serve import RULES
from purine.zoo._layers import classifier, conv_norm_relu

LR, MOMENTUM, DECAY = 0.01, 0.9, 5e-4
TESTED = 500
"""Images in a batch of a test."""
SYNCHRONOUS = "synchronous"
SCHEMES: Mapping[str, str] = {
    SYNCHRONOUS: "data=N",
    "floating": "data=N,micro=4,floating=true",
    "ssp": "workers=N,asynchronous=ssp,staleness=8",
    "downpour": "workers=N,asynchronous=downpour",
    "hogwild": "workers=N,asynchronous=hogwild",
    "easgd": "workers=N,asynchronous=easgd",
    "gossip": "workers=N,asynchronous=gossip",
    "local": "workers=N,asynchronous=local",
    "diloco": "workers=N,asynchronous=diloco",
}
"""By contender its scheme, for N devices."""
_THREAD = threading.local()


@kind
def Drag(x: Tensor, *, devices: int, rest: float, slow: float, wander: float) -> Tensor:
    """x; the thread first sleeps `rest` times the CPU time that it took since last time, on the
    slow one of the devices `slow` times."""
    last = int(time.monotonic() / wander) % devices if wander else devices - 1
    here = threading.current_thread().name.endswith(f", cpu:{last} compute")
    now = time.thread_time()
    time.sleep((slow if here else rest) * (now - getattr(_THREAD, "since", now)))
    _THREAD.since = time.thread_time()
    return x.view_as(x)


def dragged(step: Graph, options: argparse.Namespace) -> Graph:
    """A net with gradients, of which the last is late: on one device later than on the others."""
    gradients = {gradient_of(name) for name, state in step.states.items() if state.trainable}
    last = next(
        name
        for op in reversed([step.ops[name] for name in step.order])
        for name in op.outputs
        if name in gradients
    )
    builder = Builder(step)
    maker, early = step.producers[last], f"{last}/early"
    builder.add(replace(builder.blobs[last], name=early))
    builder.ops[maker.name] = maker.renamed({last: early})
    drag = replace(maker, name=f"{last}/drag", kind="Drag", inputs=(early,), outputs=(last,))
    rest, slow = options.rest, options.slow * (1.0 + options.rest) - 1.0
    settings = {"devices": options.devices, "rest": rest, "slow": slow, "wander": options.wander}
    builder.add(replace(drag, attributes=settings))
    return builder.graph()


@dataclass
class Contender:
    """A run of one scheme, and what was measured of it."""

    name: str
    scheme: Scheme
    run: pu.Run
    test: Graph
    images: int
    """Images in a result."""
    speeds: list[float] = field(default_factory=list)
    staleness: list[int] = field(default_factory=list)

    def train(self, images: int) -> float:
        """Train about so many images; returns the seconds."""
        begun = time.perf_counter()
        for result in self.run.steps(max(1, round(images / self.images))):
            self.staleness.append(getattr(result, "staleness", 0) or 0)
        return time.perf_counter() - begun

    def accuracy(self) -> float:
        means = self.run.evaluate(self.test)
        return means[next(name for name in means if "accuracy" in name)]


def net_of(name: str, batch: int) -> Graph:
    """A net of the zoo for small grey images; for `nin` a small one."""
    if name == "nin":
        return small_nin(batch)
    net: Graph = getattr(pu.zoo, name)(batch=batch)
    return net


def small_nin(batch: int) -> Graph:
    """Network in Network with a sixth of the channels, and batch norm in place of dropout."""
    net = Net()
    x, label = net.data((batch, 1, 28, 28))
    for block, widths in enumerate(((32, 24, 16), (32, 32, 32)), 1):
        x = conv_norm_relu(x, widths[0], kernel=5, pad=2, name=f"conv{block}")
        x = conv_norm_relu(x, widths[1], kernel=1, name=f"cccp{block}a")
        x = conv_norm_relu(x, widths[2], kernel=1, name=f"cccp{block}b")
        x = pool(x, kernel=3, stride=2, ceil=True, name=f"pool{block}")
    x = conv_norm_relu(x, 32, kernel=3, pad=1, name="conv3")
    x = conv_norm_relu(x, 32, kernel=1, name="cccp3a")
    x = conv(x, 10, kernel=1, name="cccp3b")
    x = flatten(global_pool(x, method="average", name="pool3"), name="scores")
    return classifier(net, x, label)


def build(name: str, options: argparse.Namespace) -> Contender:
    """A contender that has not trained yet; its devices are equally fast unless options say so."""

    def solver(graph: Graph) -> Graph:
        if "slow" in options:
            graph = dragged(graph, options)
        return pu.solvers.sgd(graph, lr=options.lr, momentum=MOMENTUM, weight_decay=DECAY)

    data = pu.data.open_data(options.data)
    return contender_of(name, SCHEMES[name], data, solver, options)


def contender_of(
    name: str,
    scheme: str,
    data: pu.data.DataSet,
    solver: Callable[[Graph], Graph],
    options: argparse.Namespace,
) -> Contender:
    """A contender of a scheme for N devices; `options` has the net, batch, devices and seed."""
    parsed = Scheme.parse(scheme.replace("N", str(options.devices)))
    step = pu.compose(
        pu.data.prepare(net_of(options.net, options.batch), data.train),
        solver=solver,
        devices=f"cpu:0-{options.devices - 1}",
        scheme=parsed,
    )
    assert data.test is not None
    test = pu.evaluation(pu.data.prepare(net_of(options.net, TESTED), data.test))
    run = pu.Run(step, data=data, seed=options.seed, threads=1, share_cores=True)
    images = options.batch // (parsed.workers if parsed.asynchronous else 1)
    return Contender(name, parsed, run, test, images)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add_options(parser)
    parser.add_argument("--slow", type=float, default=4.0, help="how slow one device is")
    parser.add_argument("--rest", type=float, default=3.0, help="how long all devices rest")
    parser.add_argument("--wander", type=float, default=0.0, help="seconds that a device is slow")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="length of a turn, about")
    parser.add_argument("--target", type=float, default=0.75, help="test accuracy; 0 for no race")
    parser.add_argument("--most", type=float, default=10.0, help="epochs of the race")
    options = parser.parse_args()
    found = speeds(options)
    for name, seconds in race(options).items():
        found[name]["seconds_to_target"] = seconds
    report(found, options)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of both benchmarks of asynchronous training."""
    parser.add_argument("--net", default="lenet", help="lenet, mlp or nin (a small one)")
    parser.add_argument("--data", default="fashion-mini")
    parser.add_argument("--batch", type=int, default=128, help="images of all devices")
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--lr", type=float, default=LR)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--contenders", nargs="+", choices=tuple(SCHEMES), default=tuple(SCHEMES))


def speeds(options: argparse.Namespace) -> dict[str, dict[str, float | None]]:
    """Images/s of all contenders, which take turns."""
    names = dict.fromkeys((SYNCHRONOUS, *options.contenders))
    contenders = [build(name, options) for name in names]
    try:
        images = {}
        for contender in contenders:
            contender.train(2 * options.batch)
            spent = contender.train(8 * options.batch)
            images[contender.name] = round(8 * options.batch * options.seconds / spent)
            contender.staleness.clear()
        for turn in range(options.turns):
            for contender in contenders:
                wanted = images[contender.name]
                contender.speeds.append(wanted / contender.train(wanted))
            print(f"turn {turn + 1}/{options.turns}", file=sys.stderr, flush=True)
    finally:
        for contender in contenders:
            contender.run.close()
    base = contenders[0].speeds
    return {
        contender.name: {
            "images_per_second": statistics.median(contender.speeds),
            "ratio": statistics.median(
                own / other for own, other in zip(contender.speeds, base, strict=True)
            ),
            **staleness_of(contender),
        }
        for contender in contenders
    }


def staleness_of(contender: Contender) -> dict[str, float | None]:
    """The mean and the largest staleness of what workers read."""
    rule = contender.scheme.asynchronous
    if rule is None or "staleness" not in RULES[rule.scheme] or not contender.staleness:
        return {"mean_staleness": None, "largest_staleness": None}
    found = contender.staleness
    return {"mean_staleness": statistics.mean(found), "largest_staleness": max(found)}


def race(options: argparse.Namespace) -> dict[str, float | None]:
    """Seconds of training until the target is reached; None where it was not."""
    if not options.target:
        return {}
    times: dict[str, float | None] = {}
    size = len(pu.data.open_data(options.data).train)
    for name in dict.fromkeys((SYNCHRONOUS, *options.contenders)):
        contender, spent, trained = build(name, options), 0.0, 0
        with contender.run:
            while trained < options.most * size and name not in times:
                spent += contender.train(size // 4)
                trained += size // 4
                if contender.accuracy() >= options.target:
                    times[name] = spent
        times.setdefault(name, None)
        print(f"{name}: {times[name]} s", file=sys.stderr, flush=True)
    return times


def report(found: Mapping[str, Mapping[str, float | None]], options: argparse.Namespace) -> None:
    """A table, and a line of JSON."""
    columns = tuple(next(iter(found.values())))
    print(f"| scheme | {' | '.join(column.replace('_', ' ') for column in columns)} |")
    print("|---" * (len(columns) + 1) + "|")
    for name, row in found.items():
        print(f"| {name} | {' | '.join(shown(row[column]) for column in columns)} |")
    facts = {"torch": torch.__version__, **vars(options)}
    ratios = {f"{name}_ratio": row["ratio"] for name, row in found.items() if "ratio" in row}
    print(json.dumps({**ratios, "rows": found, "options": facts}, default=str))


def shown(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


if __name__ == "__main__":
    main()
