"""Asynchronous training over hosts: a worker on each host, and a courier for each worker.

A worker trains its own copy of the parameters and never waits for another host. A *courier* is also
a worker of the graph, with iterations (*rounds*) of its own, and its ops are on two hosts. It sends
the updates of its worker to the server, which has the shared parameters, and returns the new
parameters. Both ends are states that it shares: with the worker on one host, and with all other
couriers on the server. Values cross between the hosts by plain copies, which lowering turns into
puts and arrivals.

The run decides when a round begins: at most once in `pace` iterations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import purine.kinds.asynchronous
import purine.kinds.versions  # noqa: F401  (registers the kinds)
from purine.errors import ConfigError
from purine.graph import FETCH, ROUND, Attribute, Builder, Filler, Graph, Location, Origin
from purine.graph.names import worker_of
from purine.parallel.serve.easgd import alpha_of
from purine.parallel.serve.local_sgd import outer_rate
from purine.parallel.serve.rule import RULES, Asynchronous
from purine.parallel.serve.server import plain_step, share_of
from purine.parallel.serve.worker import Worker, join_workers
from purine.placement.copies import insert_copies, without_copies
from purine.placement.devices import wrong_devices
from purine.placement.place import to_devices
from purine.registry.aten import dtype_of
from purine.registry.clock import ITERATION, SEED
from purine.registry.fillers import with_name

__all__ = ["over_hosts", "pace_of"]

_PUSHES = "pushes"


def pace_of(rule: Asynchronous) -> int:
    """The least number of iterations of a worker between two rounds of its courier."""
    return rule.count("push" if rule.scheme == "downpour" else "every")


def over_hosts(
    base: Graph, own: Sequence[Location], places: Sequence[Location], rule: Asynchronous
) -> Graph:
    """The graph of a worker on each host, with a courier for each; `own` are the devices of `base`.

    The first device has the shared parameters. With `servers=1` it has no worker.
    """
    courier = _SCHEMES.get(rule.scheme)
    if courier is None:
        what = f"{rule.scheme} does not go over hosts"
        expected, found = "one of " + ", ".join(_SCHEMES), rule.scheme
        remedy = "choose another scheme, or name devices of one host"
        raise ConfigError(what, expected, found, remedy)
    push, fetch = (rule.value(name) for name in ("push", "fetch"))
    if rule.fetch is not None and fetch != push:
        what, expected = "over hosts, downpour pushes and fetches equally often", f"fetch={push}"
        raise ConfigError(
            what, expected, f"fetch={fetch}", "leave fetch out, or give both the same value"
        )
    servers = rule.count("servers")
    for name, value in (("stale_rate", rule.value("stale_rate")), ("servers", servers > 1)):
        if value:
            what, remedy = f"{name} does not go over hosts like that", f"leave {name} out"
            found = str(rule.value(name))
            raise ConfigError(what, "one server, and rates by its updates", found, remedy)
    server, working = places[0], places[servers:]
    teams = [working[at : at + len(own)] for at in range(0, len(working), len(own))]
    hosts = [server.host] * servers + [team[0].host for team in teams]
    if any(len({at.host for at in team}) > 1 for team in teams) or len(set(hosts)) < len(hosts):
        what, expected = "workers on these devices share hosts", "each worker on a host of its own"
        remedy = f"name {len(own)} devices of each host"
        raise wrong_devices(what, expected, places, remedy)
    workers = []
    for number, onto in enumerate(teams):
        placed = without_copies(to_devices(base, dict(zip(own, onto, strict=True))))
        workers.append(Worker(placed, number, len(teams), rule))
    builder = Builder()
    for worker in workers:
        going = Courier(worker, server, builder)
        going.goes()
        courier(worker, going)
        _statistics(worker, going)
    joined = Builder(join_workers(workers))
    joined.blobs |= builder.blobs
    joined.ops |= builder.ops
    joined.states |= builder.states
    joined.control |= builder.control
    return _counted_late(insert_copies(joined.graph()))


def _counted_late(graph: Graph) -> Graph:
    """Pushes counted when they come: a number is taken once the first value of a round is there."""
    came: dict[tuple[int, Location], str] = {}
    """By courier and device the first copy that comes there from another host."""
    for op in graph.ops.values():
        if op.kind == "Copy" and graph.blobs[op.inputs[0]].location.host != op.location.host:
            came.setdefault((op.worker, op.location), op.name)
    late = {
        (came[op.worker, op.location], op.name)
        for op in graph.ops.values()
        if op.kind == "Take" and op.worker and (op.worker, op.location) in came
    }
    return replace(graph, control=graph.control | late)


@dataclass
class Courier:
    """The graph of one courier while it is built."""

    worker: Worker
    server: Location
    builder: Builder
    known: dict[str, str] = field(default_factory=dict)
    """By blob of the worker's step that is computed at the server its name there."""

    @property
    def number(self) -> int:
        """The number of the courier among all workers of the graph."""
        return self.worker.count + self.worker.number

    def name(self, name: str) -> str:
        return worker_of(self.number, name)

    def local(self, name: str) -> str:
        """The name of a state that the courier shares with its worker only."""
        return f"at{self.worker.number}/{name}"

    def blob(self, name: str, like: str, at: Location | None = None) -> str:
        """Add a blob that is typed as one of the step; at the server, unless said otherwise."""
        blob = self.worker.step.blobs[like]
        own = replace(blob, name=self.name(name), location=at or self.server, where=None)
        self.builder.add(own)
        return own.name

    def home(self, parameter: str) -> Location:
        """The location of a worker's parameter."""
        return self.worker.step.blobs[parameter].location

    def state(
        self,
        name: str,
        like: str,
        at: Location | None = None,
        *,
        first: str | None = None,
        shared: str = "",
        following: str | None = None,
    ) -> str:
        """Add a state and return its name; it begins as 0, or as the state `first` of the step."""
        read = self.blob(name, like, at)
        filler = Filler()
        if first is not None:
            filler = with_name(self.worker.step.states[first].filler, first)
        next = following or self.blob(f"{name}/next", like, at)
        bound = None if shared else 0
        self.builder.state(read, next, filler, staleness=bound, shared=shared)
        return read

    def op(
        self,
        name: str,
        kind: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        attributes: Mapping[str, Attribute] | None = None,
    ) -> str:
        """Add an op at the place of its first output, and return its name."""
        at = self.builder.blobs[outputs[0]].location
        name = self.name(name)
        origin, ends = Origin(outputs[0], "update"), (inputs, outputs)
        self.builder.op(
            name, kind, *ends, attributes, location=at, origin=origin, worker=self.number
        )
        return name

    def fetch(self, name: str, state: str, like: str, *, after: str | None = None) -> str:
        """Add an op that reads the newest version of a state."""
        read = self.blob(name, like, self.builder.blobs[state].location)
        fetch = self.op(name, FETCH, [state], [read])
        if after is not None:
            self.builder.control.add((after, fetch))
        return read

    def taken(self, parameter: str) -> tuple[str, str]:
        """The state of the worker's parameter, and the courier's read of it."""
        at = self.home(parameter)
        here = self.state(
            f"{parameter}/here", parameter, at, first=parameter, shared=self.local(parameter)
        )
        return here, self.fetch(f"{parameter}/before", here, parameter)

    def deliver(self, parameter: str, here: str, before: str, after: str) -> None:
        """Move the worker's parameter by as much as the copy that was sent has moved."""
        self.op(f"{parameter}/deliver", "Rebase", [here, before, after], [f"{here}/next"])

    def clocked(self, name: str) -> str:
        """A scalar of the step that depends only on the clock, computed at the server by the rounds
        of all couriers: one of each stands for `pace` iterations."""
        if name in self.known:
            return self.known[name]
        step, builder = self.worker.step, self.builder
        if name == ITERATION:
            return self._clock()
        if name in step.states:
            own = self.blob(name, name)
            builder.state(own, own, with_name(step.states[name].filler, name))
        else:
            op = step.producers[name]
            inputs = tuple(self.clocked(read) for read in op.inputs)
            outputs = tuple(self.blob(written, written) for written in op.outputs)
            renamed = replace(op, name=self.name(op.name), inputs=inputs, outputs=outputs)
            builder.add(replace(renamed, location=self.server, worker=self.number))
            own = outputs[op.outputs.index(name)]
        self.known[name] = own
        return own

    def goes(self) -> None:
        """Add the op that decides when a round begins."""
        rule = self.worker.rule
        bound = rule.bound if "staleness" in RULES[rule.scheme] else None
        called = {"of": self.worker.number, "pace": pace_of(rule), "bound": bound}
        home = self.home(self.worker.parameters[0])
        self.builder.op(
            self.name("round"), ROUND, (), (), called, location=home, worker=self.number
        )

    def pushes(self) -> str:
        """The number of earlier pushes at the server."""
        if _PUSHES not in self.known:
            count = self.state(_PUSHES, ITERATION, shared=_PUSHES)
            taken = self.blob(f"{_PUSHES}/taken", ITERATION)
            self.op(f"{_PUSHES}/taken", "Take", [count], [taken, f"{count}/next"])
            self.known[_PUSHES] = taken
        return self.known[_PUSHES]

    def _clock(self) -> str:
        """The iteration of synchronous training that a push belongs to."""
        passed = self.blob("passed", ITERATION)
        pace = {"other": pace_of(self.worker.rule)}
        self.op("passed", "aten.mul.Scalar", [self.pushes()], [passed], pace)
        clock = self.blob("clock", ITERATION)
        count: dict[str, Attribute] = {"other": self.worker.count, "rounding_mode": "floor"}
        self.op("clock", "aten.div.Scalar_mode", [passed], [clock], count)
        self.known[ITERATION] = clock
        return clock

    def rounds(self) -> str:
        """The number of earlier rounds of this courier."""
        if "rounds" not in self.known:
            following = self.blob("rounds/next", ITERATION)
            rounds = self.state("rounds", ITERATION, following=following)
            self.op("rounds", "aten.add.Scalar", [rounds], [following], {"other": 1})
            self.known["rounds"] = rounds
        return self.known["rounds"]


def _trained_here(worker: Worker) -> None:
    """Let a worker train parameters that its courier reads and moves."""
    worker.take_own_tickets()
    for parameter in worker.parameters:
        worker.share(parameter, bound=None, under=f"at{worker.number}/{parameter}")
        worker.name_filler(parameter)
        newest = worker.fetch(parameter, of=parameter)
        worker.read_as(parameter, newest, but=[worker.updates[parameter]])


def _downpour(worker: Worker, courier: Courier) -> None:
    """Gradients are added up and sent; meanwhile the worker takes plain steps along them."""
    rates = {parameter: worker.rate(parameter) for parameter in worker.parameters}
    updates = {parameter: worker.builder.ops[worker.updates[parameter]] for parameter in rates}
    memories = {parameter: worker.memories(parameter) for parameter in rates}
    _trained_here(worker)
    for parameter, update in updates.items():
        shared = courier.local(f"accrued/{parameter}")
        _accrue(worker, parameter, rates[parameter], memories[parameter], under=shared)
        at = courier.home(parameter)
        accrued = courier.state(f"accrued/{parameter}", parameter, at, shared=shared)
        sent = courier.blob(f"sent/{parameter}", parameter, at)
        courier.op(f"sent/{parameter}", "Collect", [accrued], [sent, f"{accrued}/next"])
        here, before = courier.taken(parameter)
        served = courier.state(parameter, parameter, first=parameter, shared=parameter)
        read: dict[str, str] = {parameter: served, worker.step.ops[update.name].inputs[1]: sent}
        written = {worker.step.states[parameter].next: f"{served}/next"}
        for memory in memories[parameter]:
            read[memory] = courier.state(memory, memory, first=memory, shared=memory)
            written[worker.step.states[memory].next] = f"{read[memory]}/next"
        inputs = []
        for number, name in enumerate(worker.step.ops[update.name].inputs):
            if name == rates[parameter] and number == 2 + len(memories[parameter]):
                inputs.append(_share(courier, name))
            elif name == ITERATION:
                inputs.append(courier.pushes())
            else:
                inputs.append(read[name])
        outputs = [written[name] for name in worker.step.ops[update.name].outputs]
        pushed = courier.op(
            f"{parameter}/push", update.kind, inputs, outputs, dict(update.attributes)
        )
        fresh = courier.fetch(f"{parameter}/fresh", served, parameter, after=pushed)
        courier.deliver(parameter, here, before, fresh)


def _accrue(
    worker: Worker, parameter: str, own_rate: str, memories: Sequence[str], *, under: str
) -> None:
    """Let a worker add up gradients instead of its solver's update, and take a plain step along
    each."""
    builder, rate = worker.builder, share_of(worker, own_rate)
    update = builder.ops.pop(worker.updates[parameter])
    for memory in memories:
        for name in {memory, builder.states.pop(memory).next}:
            del builder.blobs[name]
    name = f"accrued/{parameter}"
    following = worker.state(name, parameter)
    worker.share(name, bound=None, under=under)
    inputs = [name, worker.gradient(parameter)]
    worker.op(f"{name}/add", "aten.add.Tensor", inputs, [following], of=parameter)
    following = worker.step.states[parameter].next
    plain_step(worker, update.name, parameter, parameter, rate, following)


def _share(courier: Courier, rate: str) -> str:
    """The rate of a push at the server: that of the step, divided by the number of workers."""
    whole, count = courier.clocked(rate), courier.worker.count
    share = f"{rate}/share"
    if share not in courier.known:
        courier.known[share] = courier.blob(share, rate)
        part = {"other": 1.0 / count}
        courier.op(share, "aten.mul.Scalar", [whole], [courier.known[share]], part)
    return courier.known[share]


def _easgd(worker: Worker, courier: Courier) -> None:
    """The worker and the center move towards each other."""
    alpha = alpha_of(worker)
    _trained_here(worker)
    for parameter in worker.parameters:
        here, before = courier.taken(parameter)
        center = courier.state(parameter, parameter, first=parameter, shared=parameter)
        moved = courier.blob(f"{parameter}/moved", parameter)
        courier.op(
            f"{parameter}/push",
            "ElasticMeet",
            [center, before, courier.rounds()],
            [f"{center}/next", moved],
            {"alpha": alpha},
        )
        courier.deliver(parameter, here, before, moved)


def _local(worker: Worker, courier: Courier) -> None:
    """A worker sends its change of the parameters since it last did."""
    rate, momentum = outer_rate(worker)
    _trained_here(worker)
    for parameter in worker.parameters:
        _way(courier, parameter, rate, momentum)


def _way(courier: Courier, name: str, rate: float, momentum: float | None) -> None:
    """Send the change of one state, and return the shared value after it."""
    at = courier.home(name)
    here, before = courier.taken(name)
    served = courier.state(name, name, first=name, shared=name)
    way = courier.blob(f"{name}/way", name, at)
    settings: dict[str, Attribute] = {"rate": rate}
    inputs, outputs, kind = [served, way], [f"{served}/next"], "OuterWay"
    if momentum is not None:
        slot = f"outer_momentum/{name}"
        velocity = courier.state(slot, name, shared=slot)
        inputs.append(velocity)
        outputs.append(f"{velocity}/next")
        settings["momentum"], kind = momentum, "OuterWayMomentum"
    pushed = courier.op(f"{name}/push", kind, inputs, outputs, settings)
    fresh = courier.fetch(f"{name}/fresh", served, name, after=pushed)
    start = courier.state(f"start/{name}", name, at, first=name, following=fresh)
    courier.op(f"{name}/way", "aten.sub.Tensor", [before, start], [way])
    courier.deliver(name, here, before, fresh)


def _statistics(worker: Worker, courier: Courier) -> None:
    """States that no solver updates, such as running statistics, move by the mean change of the
    workers, since the server measures with them."""
    step, known = worker.step, {ITERATION, SEED, *worker.parameters}
    known |= {name for parameter in worker.parameters for name in worker.memories(parameter)}
    for name, state in step.states.items():
        writer = step.producers.get(state.next)
        if name in known or writer is None or state.next == name:
            continue
        if not dtype_of(step.blobs[name].dtype).is_floating_point:
            what, expected = "workers on several hosts have no mean of this state", "real numbers"
            remedy = "train with workers on one host, or without this layer"
            raise ConfigError(what, expected, step.blobs[name].dtype, remedy, blob=name)
        worker.share(name, bound=None, under=courier.local(name))
        worker.name_filler(name)
        if any(reader.name != writer.name for reader in step.consumers[name]):
            worker.read_as(name, worker.fetch(name, of=name), but=[writer.name])
        _way(courier, name, 1.0 / worker.count, None)


_SCHEMES: Mapping[str, Callable[[Worker, Courier], None]] = {
    "downpour": _downpour,
    "easgd": _easgd,
    "local": _local,
    "diloco": _local,
}
