"""Placing ops on devices by name: model parallelism written by hand.

The outputs of an op follow it, and so do the parameters that it is the first to read, their updates
and optimizer state, and the backward of the op. Copies are inserted, so no number changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from purine.analysis.infer import check
from purine.arguments import checked
from purine.errors import ConfigError, GraphError
from purine.graph import NOTHING, Builder, Graph, Location
from purine.graph.names import GRADIENT, has_gradients, origin_of
from purine.nearest import nearest_names
from purine.placement.copies import insert_copies, without_copies
from purine.placement.devices import as_location, as_locations, devices_of, wrong_devices
from purine.registry.clock import ITERATION, SEED

_FOLLOWING = frozenset({"backward", "update"})
"""Roles of ops that go where the op or the parameter is that they belong to."""


@checked
def place(graph: Graph, places: Mapping[str, str | Location]) -> Graph:
    """The graph with its ops on the devices that patterns of their names give.

    In a pattern `*` stands for any text; where several match an op, the last one counts. In a step,
    ops under `grad/o/` go with op `o`, and `update/p` with parameter `p`, unless a pattern names
    them. Ops that nothing names stay where they are.

    >>> from purine.zoo import mlp
    >>> net = place(mlp(batch=8), {"fc2": "cpu:1"})
    >>> net.ops["fc2"].location.device, net.blobs["fc2/weight"].location.device
    ('cpu:1', 'cpu:1')
    """
    bare = without_copies(graph)
    named: dict[str, Location] = {}
    for pattern, device in places.items():
        named |= dict.fromkeys(matching(bare, [pattern]), as_location(device))
    return moved(bare, _with_helpers(bare, named))


@checked
def to_device(graph: Graph, device: str | Location) -> Graph:
    """The graph with all of its first device on another: for a GPU, where data is read on the host.

    >>> import purine as pu
    >>> step = to_device(pu.solvers.sgd(pu.backward(pu.zoo.mlp(batch=4)), lr=0.1), "cuda:0")
    >>> step.ops["fc1"].location.device, step.ops["data"].location.device
    ('cuda:0', 'cpu:0')
    """
    target = as_location(device)
    bare = without_copies(graph)
    own = devices_of(bare)
    if len(own) > 1:
        remedy = "use place, or name the devices in the scheme of parallelism"
        raise wrong_devices("the graph is on several devices", "a graph on one device", own, remedy)
    used = (*own, *(blob.location for blob in bare.blobs.values()))
    return to_devices(bare, dict.fromkeys(used, target))


def to_devices(graph: Graph, moves: Mapping[Location, Location]) -> Graph:
    """The graph with everything of each device on another; data for a GPU is read on the host."""
    bare = without_copies(graph)
    ops = {name: replace(op, location=moves[op.location]) for name, op in bare.ops.items()}
    blobs = {
        name: replace(blob, location=moves.get(blob.location, blob.location))
        for name, blob in bare.blobs.items()
    }
    return check(insert_copies(replace(bare, ops=ops, blobs=blobs)))


@checked
def place_at_cut(
    net: Graph, names: Sequence[str], devices: str | Sequence[str | Location]
) -> Graph:
    """The net in stages on one device each: a new stage begins with each of the named ops.

    An op is in the latest stage of what it reads, so nothing goes back to an earlier device.

    >>> from purine.zoo import mlp
    >>> net = place_at_cut(mlp(batch=8), ["fc2"], "cpu:0-1")
    >>> net.ops["fc1"].location.device, net.ops["loss"].location.device
    ('cpu:0', 'cpu:1')
    """
    refuse_gradients(net, "place_at_cut")
    places = as_locations(devices)
    if len(places) != len(names) + 1:
        what = f"{len(names)} cuts make {len(names) + 1} stages, for {len(places)} devices"
        expected, remedy = f"{len(names) + 1} devices", "name one device more than cuts"
        raise wrong_devices(what, expected, places, remedy)
    bare = without_copies(net)
    for name in names:
        if name not in bare.ops:
            raise no_match(bare, name)
    stages: dict[str, int] = {}
    for name in bare.order:
        read = bare.ops[name].inputs
        makers = [bare.producers[blob].name for blob in read if blob in bare.producers]
        stage = max((stages[maker] for maker in makers), default=0)
        if name in names:
            stage = max(stage, names.index(name) + 1)
        stages[name] = stage
    empty = set(range(len(places))).difference(stages.values())
    if empty:
        raise ConfigError(
            f"no op is in stage {min(empty)}",
            op=names[min(empty) - 1] if min(empty) else None,
            expected="cuts in the order in which their ops run",
            found=", ".join(names),
            remedy="name the cuts from the first to the last",
        )
    return moved(bare, {name: places[stage] for name, stage in stages.items()})


def matching(graph: Graph, patterns: Sequence[str]) -> tuple[str, ...]:
    """The ops whose names match a pattern, in graph order; an error for a pattern without any."""
    names: set[str] = set()
    for pattern in patterns:
        matches = {name for name in graph.ops if fnmatchcase(name, pattern)}
        if not matches:
            raise no_match(graph, pattern)
        names |= matches
    return tuple(name for name in graph.ops if name in names)


def moved(graph: Graph, named: Mapping[str, Location]) -> Graph:
    """A graph without copies with some ops moved, what belongs to them too, and copies again."""
    builder = Builder(graph)
    homes: dict[str, Location] = {}

    def put(op: str, location: Location) -> None:
        builder.ops[op] = replace(builder.ops[op], location=location)
        homes.update((name, location) for name in graph.ops[op].outputs if name != NOTHING)

    later = [name for name in graph.order if origin_of(graph.ops[name]).role in _FOLLOWING]
    for name in graph.order:
        if name in named:
            put(name, named[name])
    first: dict[str, str] = {}
    for name in graph.order:
        if name not in later:
            for blob in graph.ops[name].inputs:
                first.setdefault(blob, name)
    for name in graph.states:
        if first.get(name) in named and name not in (SEED, ITERATION):
            homes[name] = named[first[name]]
    for name in later:
        of = origin_of(graph.ops[name]).of
        target = None if name in named else homes.get(of) or named.get(of)
        if target is not None:
            put(name, target)
    for name, state in graph.states.items():
        if state.origin is not None and state.origin.of in homes and name not in first:
            homes[name] = homes[state.origin.of]
    for name, home in homes.items():
        builder.blobs[name] = replace(builder.blobs[name], location=home)
    return check(insert_copies(builder.graph()))


def _with_helpers(graph: Graph, named: Mapping[str, Location]) -> dict[str, Location]:
    """With the ops that only an op of these and its backward read: it was lowered to them."""
    locations = dict(named)
    for name in reversed(graph.order):
        origin = origin_of(graph.ops[name])
        if name in named or origin.of not in named or origin.role != "forward":
            continue
        blobs = graph.ops[name].outputs
        readers = [op for blob in blobs for op in graph.consumers.get(blob, ())]
        if all(op.name == origin.of or origin_of(op).of == origin.of for op in readers):
            locations[name] = named[origin.of]
    return locations


def refuse_gradients(net: Graph, transform: str) -> None:
    """An error for a graph that is not a net any more."""
    if has_gradients(net):
        what, expected = "the graph has gradients already", "a net of forward ops"
        remedy = f"change the net first: sgd(backward({transform}(net, ...)))"
        raise GraphError(what, expected, f"blobs under {GRADIENT}/", remedy)


def refuse_casts(net: Graph, transform: str) -> None:
    """An error for a net in mixed precision, whose layers do not read their parameters directly."""
    for op in net.ops.values():
        if op.kind != "aten._to_copy" or op.inputs[0] not in net.states:
            continue
        if net.states[op.inputs[0]].trainable and op.name.startswith(f"{op.inputs[0]}/"):
            what = f"parameter {op.inputs[0]!r} is cast before it is used, so it cannot be cut"
            found = f"a cast to {op.attributes.get('dtype')}"
            remedy = f"cut the net first: mixed({transform}(net, ...))"
            raise GraphError(what, "a net in float32", found, remedy, op=op, blob=op.inputs[0])


def no_match(graph: Graph, pattern: str) -> ConfigError:
    """The error that no op is called so, with the nearest names."""
    expected = "the name of an op of the graph, or a pattern such as layer1/*"
    remedy = nearest_names(pattern.strip("*"), graph.ops, "see `purine show` for the names")
    return ConfigError(f"no op is called {pattern!r}", expected, repr(pattern), remedy, op=pattern)
