"""Data parallel convolutions and model parallel inner products, in one net.

Convolutions have few parameters and many activations, inner products the reverse. So each device
has a copy of the first part of a net, for its share of the batch. The second part exists once for
the whole batch, sharded over the devices by `shard`. In between, every device joins the activations
of all. The given net is that of one share: n devices with batch b train as batch n * b does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import purine.kinds.average  # noqa: F401  (registers the kinds)
from purine.analysis.infer import check, complete, size_in_bytes, with_batch
from purine.analysis.samples import MIXED, Samples
from purine.arguments import checked
from purine.autodiff import losses_of
from purine.autodiff.batch_marks import batch_of_net
from purine.errors import GraphError
from purine.graph import NOTHING, Attribute, Builder, Graph, Location, Op
from purine.graph.names import replica, shard_name
from purine.parallel._parts import Part, add_next, add_outputs, add_part
from purine.parallel.halves import Halves, samples_of, shared_out
from purine.parallel.shard import shard
from purine.placement.copies import insert_copies, without_copies
from purine.placement.devices import as_locations, devices_of, wrong_devices
from purine.placement.place import no_match, refuse_casts, refuse_gradients, to_device
from purine.registry.clock import ITERATION, SEED
from purine.registry.lookup import lookup

__all__ = ["hybrid"]

_FULL = ("InnerProduct", "aten.linear", "aten.addmm")


@checked
def hybrid(
    net: Graph,
    devices: str | Iterable[str | Location],
    *,
    split: str | Sequence[str] | None = None,
    cut: bool = True,
) -> Graph:
    """The net with its first part on every device and the rest sharded over all of them.

    The rest begins with the first inner products, or with `split`: its first ops, or blobs that it
    reads. With `cut=False` the rest is not sharded but computed by the first device: for losses
    that need the whole batch, such as contrastive ones. Copies of the first part are under
    `replica0/`, `replica1/`, ...; the devices divide the ownership of their parameters. Batch norm
    in the first part normalises the samples of each device separately.

    >>> from purine.zoo import lenet
    >>> net = hybrid(lenet(batch=4), ["cpu:0", "cpu:1"])
    >>> net.blobs["replica1/pool2"].shape, net.blobs["pool2"].shape
    ((4, 50, 4, 4), (8, 50, 4, 4))
    """
    places = as_locations(devices)
    if len(places) < 2 or len(set(places)) != len(places):
        what, remedy = f"a net cannot be hybrid over {len(places)} devices", "name two or more"
        raise wrong_devices(what, "two or more devices, each once", places, remedy)
    refuse_gradients(net, "hybrid")
    refuse_casts(net, "hybrid")
    own = devices_of(net)
    if len(own) > 1:
        what = f"the net is on {len(own)} devices already"
        found = ", ".join(location.device for location in own)
        remedy = "give the net as it was before it was placed"
        raise GraphError(what, "a net on one device", found, remedy)
    bare = complete(without_copies(net))
    parts = _Parts(bare, _rest(bare, split))
    return _Hybrid(bare, parts, places, cut=cut).graph()


def _rest(net: Graph, split: str | Sequence[str] | None) -> set[str]:
    """The ops after the border between the two parts."""
    if split is None:
        starts = {op.name for op in net.ops.values() if op.kind in _FULL}
        if not starts:
            what = "the net has no inner products"
            expected = f"an op of a kind such as {', '.join(_FULL[:2])}, or split="
            found = "kinds " + ", ".join(sorted({op.kind for op in net.ops.values()}))
            raise GraphError(what, expected, found, "name the border with split, or use replicate")
    else:
        starts = set()
        for name in [split] if isinstance(split, str) else split:
            if name not in net.ops and name not in net.blobs:
                raise no_match(net, name)
            starts |= {name} if name in net.ops else {op.name for op in net.consumers[name]}
    rest: set[str] = set()
    for name in net.order:
        makers = {net.producers[b].name for b in net.ops[name].inputs if b in net.producers}
        if name in starts or not makers.isdisjoint(rest):
            rest.add(name)
    return rest


class _Parts:
    """The ops of a net by part: of each share, of the whole batch, and of no batch at all."""

    def __init__(self, net: Graph, rest: set[str]) -> None:
        self.net = net
        behind: set[str] = set(net.inputs)
        front: list[Op] = []
        self.shared: list[Op] = []
        for name in net.order:
            op = net.ops[name]
            drawn = op.kind == "Data" or "stream" in lookup(op).attributes
            if name in rest:
                continue
            if drawn or not behind.isdisjoint(op.inputs):
                front.append(op)
                behind.update(op.outputs)
            else:
                self.shared.append(op)
        self.rest = [net.ops[name] for name in net.order if name in rest]
        self.front = Halves(tuple(front), (), {}, net.inputs)
        self.made = self.front.made()
        read = {name for op in self.rest for name in op.inputs}
        self.border = [name for name in net.blobs if name in self.made and name in read]
        self.axes = self._axes()
        real = any(net.blobs[name].dtype.startswith("float") for name in self.border)
        if not real or not any(lookup(op).loss for op in self.rest):
            expected = "convolutions, and after them inner products and a loss"
            found = f"{len(front)} ops before the border, {len(self.rest)} behind it"
            remedy = "name another border with split, or use shard or replicate"
            raise GraphError("the net has no two parts", expected, found, remedy)

    def _axes(self) -> dict[str, int]:
        """By blob of the border, the axis along which its parts are joined.

        The first part of the net must treat samples one by one.
        """
        batch = batch_of_net(self.net, losses_of(self.net))
        front = {op.name: op for op in self.front.batch}
        for op in (front[name] for name in batch.mixing if name in front):
            if any(batch.relations.get(blob) is MIXED for blob in op.outputs):
                raise _needs_whole(op, "mixes the samples of a batch")
        for blob in batch.reduced:
            readers = [op for op in self.net.consumers.get(blob, ()) if op.name in front]
            maker = self.net.producers.get(blob.removesuffix("/part"))
            if maker is not None and maker.name in front and blob not in self.border:
                readers.append(maker)
            if readers:
                raise _needs_whole(readers[0], "needs a sum or a mean over the whole batch")
        axes = {}
        for name in self.border:
            relation = batch.relations.get(name)
            if not isinstance(relation, Samples) or relation.outer != 1 or relation.numbers:
                because = f"makes {name!r}, which has no samples to join"
                raise _needs_whole(self.net.producers[name], because)
            axes[name] = relation.axis
        return axes


def _needs_whole(op: Op, because: str) -> GraphError:
    return GraphError(
        f"op {op.name!r} ({op.kind}) at {op.location} {because}, but is in the part of the net "
        "that each device computes for its own samples",
        op=op,
        expected="a first part that treats samples one by one",
        found=f"{op.kind}, which {because}",
        remedy=f"let the rest begin there: split={op.name!r}",
    )


class _Hybrid:
    """The hybrid net while it is built."""

    def __init__(
        self, net: Graph, parts: _Parts, places: tuple[Location, ...], *, cut: bool
    ) -> None:
        self.net, self.parts, self.places, self.cut = net, parts, places, cut
        self.batch = samples_of(net)
        self.wide = _widened(net, self.batch * len(places))

    def graph(self) -> Graph:
        rest = self._rest_alone()
        rest = shard(rest, self.places) if self.cut else to_device(rest, self.places[0])
        builder = Builder(rest)
        builder.outputs = []
        for name in builder.states.keys() & self.net.states.keys():
            builder.states[name] = self.net.states[name]
        for name, location in self._owners(builder).items():
            builder.add(replace(self.net.blobs[name], location=location))
            builder.add(self.net.states[name])
        copies = [self._share(number) for number in range(len(self.places))]
        for part in copies:
            add_part(builder, self.net, self.parts.front, part)
        for op in self.parts.shared:
            for name in op.outputs:
                if name != NOTHING and name not in builder.blobs:
                    builder.add(replace(self.net.blobs[name], location=self.places[0]))
            builder.add(replace(op, location=self.places[0]))
        self._join(builder, [part.prefix for part in copies])
        for name, state in self.net.states.items():
            if state.next in self.parts.made:
                home = builder.blobs[name].location
                add_next(builder, replace(self.net.blobs[state.next], location=home), copies)
        add_outputs(builder, self.net, self.parts.made, copies)
        return check(insert_copies(builder.graph()))

    def _share(self, number: int) -> Part:
        location, size = self.places[number], self.batch
        start, whole = number * size, len(self.places) * size
        return Part(replica(number), start, size, whole, number, located=lambda _: location)

    def _rest_alone(self) -> Graph:
        """The rest for the whole batch as a net of its own, whose inputs are the blobs of the
        border."""
        builder = Builder()
        written = {name for op in self.parts.rest for name in op.outputs if name != NOTHING}
        read = {name for op in self.parts.rest for name in op.inputs}
        for name, blob in self.wide.blobs.items():
            if name in written or name in read:
                builder.add(blob)
        for op in self.parts.rest:
            builder.add(self.wide.ops[op.name])
        for name, state in self.net.states.items():
            if name in read:
                builder.add(state if state.next in written else replace(state, next=name))
        builder.outputs = [name for name in self.net.outputs if name in written]
        return builder.graph()

    def _owners(self, builder: Builder) -> dict[str, Location]:
        """The owners of states that the rest does not have, balanced by size."""
        names = [
            name
            for name in self.net.states
            if name not in builder.states and shard_name(name, 0) not in builder.states
        ]
        owners = shared_out(
            {name: size_in_bytes(self.net.blobs[name]) for name in names},
            lambda name: self.places[:1] if name in (SEED, ITERATION) else self.places,
        )
        return {name: owners[name] for name in names}

    def _join(self, builder: Builder, prefixes: list[str]) -> None:
        """Let every device that reads a blob of the border join the shares of all itself."""
        for name in self.parts.border:
            axis: dict[str, Attribute] = {"axis": self.parts.axes[name]}
            pieces = [f"{prefix}/{name}" for prefix in prefixes]
            readers = [op for op in builder.ops.values() if name in op.inputs]
            copies = [op for op in readers if op.kind == "Copy"]
            for op in copies:
                joined = Op(op.name, "Concat", tuple(pieces), op.outputs, axis, op.location)
                builder.ops[op.name] = joined
            if len(copies) < len(readers):
                location = builder.blobs[name].location
                builder.op(f"{name}/join", "Concat", pieces, [name], axis, location=location)
            else:
                del builder.blobs[name]


def _widened(net: Graph, batch: int) -> Graph:
    try:
        return check(with_batch(net, batch))
    except GraphError as error:
        raise GraphError(
            f"the net cannot be rebuilt for a batch of {batch}",
            where=error.where,
            op=error.op,
            blob=error.blob,
            expected="ops that do not hold the batch size in their attributes",
            found=str(error).splitlines()[0],
            remedy="write the net with named kinds, or use shard or replicate",
        ) from error
