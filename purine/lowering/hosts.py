"""Lowering pass `hosts`: the part of a step that one host runs.

A `Copy` between hosts becomes a `Put` at the sender and an `Arrival` at the receiver. A control
edge between hosts becomes such a pair without a value. A `Reduce` between hosts, and the copies
that return its result, become collectives (see `together`). All other ops of other hosts are left
out.

Values that all hosts can compute themselves are not sent: the clock (seed and iteration) and
scalars that depend only on the clock, such as the learning rate. A host that reads them computes
them.

Scalars that the step returns, such as the loss, go to every host, so that all see the same results
and stop at the same iteration.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from purine.analysis.infer import size_in_bytes
from purine.errors import ConfigError
from purine.graph import Attribute, Blob, Builder, Graph, Location, Op, Origin
from purine.graph.names import copied_from, origin_of, result_of
from purine.kinds.adjoin import ADJOIN
from purine.lowering.board import POST, is_posted, places_of, posted
from purine.lowering.deadlines import SPAN, deadlines, early
from purine.lowering.parcels import in_parcels
from purine.lowering.together import (
    BROADCAST,
    REDUCE,
    Collective,
    Group,
    collectives_of,
    in_depth,
)
from purine.nearest import unknown_name
from purine.placement.devices import shares_memory
from purine.registry.clock import clockwork
from purine.registry.facts import Facts, Role
from purine.registry.kind import Attr, Kind, register

__all__ = ["Channel", "channels_of", "hosts_of", "part_of"]

_HOP = 8
"""A transfer is taken to last this part of an iteration, so gradients go before parameters."""
_TINY = 4096
"""Bytes of a blob that is sent at once, since it takes no time."""

_ENDS = {"peer": Attr(str), "channel": Attr(int)}
_SENDING = {**_ENDS, "deadline": Attr(int, 0)}

register(Kind("Put", None, (), variadic=True, attributes=_SENDING, facts=Facts(role=Role.COPY)))
"""The sender's half of a copy between hosts: writes the value into a slot of host `peer`.

Hosts number the blobs that go from one to the other: `channel` is that number. `deadline` is when
the first op that waits for the value has its turn, from 0 to 2 * `SPAN` over its iteration and the
next. A put without an input only tells the peer that the ops before it are complete.
"""

register(Kind("Fence", None, (), facts=Facts(role=Role.COPY)))
"""Stands for many control edges: what comes behind it waits for all that is before it."""

_COMING = {**_ENDS, "board": Attr(int | None, None)}
register(Kind("Arrival", None, (), attributes=_COMING, facts=Facts(role=Role.COPY)))
"""The receiver's half of a copy between hosts: completes when the value from `peer` has arrived.

With `board` the value is read where it is, from that byte of the board on.
"""


@dataclass(frozen=True, slots=True)
class Channel:
    """A blob that goes from one host to another in every iteration.

    `number` is its position among the channels of the same two hosts. `op` is the put of the sender
    or the arrival of the receiver. `blob` is None for a signal. The channel with the earliest
    `deadline` is sent first. On the board the blob has the offset `board`.
    """

    source: str
    target: str
    number: int
    op: str
    blob: Blob | None
    deadline: int = 0
    board: int | None = None


@dataclass(frozen=True, slots=True)
class _Transfer:
    """A copy or a control edge between hosts: its name, its ends, and its blob at both."""

    name: str
    source: Location
    target: Location
    read: str | None
    written: Blob | None
    before: str | None = None
    after: str | None = None
    board: int | None = None


def hosts_of(graph: Graph) -> tuple[str, ...]:
    """The hosts of a graph, sorted by the number at the end of their names, then by name."""
    return tuple(sorted({op.location.host for op in graph.ops.values()}, key=_host_order))


def _host_order(host: str) -> tuple[str, int, str]:
    letters = host.rstrip("0123456789")
    return letters, int(host[len(letters) :] or 0), host


def part_of(step: Graph, host: str) -> Graph:
    """The part of a verified step that runs on a host, with its puts and arrivals.

    >>> import purine as pu
    >>> net = pu.zoo.mlp(batch=8)
    >>> step = pu.compose(net, solver=pu.solvers.sgd, devices="host0-1:cpu:0")
    >>> incoming, outgoing = channels_of(part_of(step, "host0"), "host0")
    >>> len(incoming), len(outgoing)
    (9, 9)
    """
    hosts = hosts_of(step)
    if host not in hosts:
        remedy = "name this host in the devices of the step"
        raise unknown_name(ConfigError, "host", host, hosts, remedy=remedy)
    if len(hosts) == 1:
        return step
    if not collectives_of(step):  # these broadcast small states as well
        step = in_parcels(step)
    return _Part(step, host, hosts).graph()


def channels_of(part: Graph, host: str) -> tuple[tuple[Channel, ...], tuple[Channel, ...]]:
    """The channels to a host and those from it, in the order of its ops."""
    incoming, outgoing = list[Channel](), list[Channel]()
    for op in part.ops.values():
        if op.kind not in ("Arrival", "Put", POST):
            continue
        names = op.outputs if op.kind == "Arrival" else op.inputs
        blob = part.blobs[names[0]] if names else None
        byte = op.whole("board") if "board" in op.attributes else None
        if op.kind == POST:
            when = op.whole("deadline")
            ends = zip(op.items("peers"), op.items("channels"), strict=True)
            outgoing += [Channel(host, peer, k, op.name, blob, when, byte) for peer, k in ends]
            continue
        peer, number = op.attributes["peer"], op.whole("channel")
        assert isinstance(peer, str)
        if op.kind == "Put":
            outgoing.append(Channel(host, peer, number, op.name, blob, op.whole("deadline")))
        else:
            incoming.append(Channel(peer, host, number, op.name, blob, board=byte))
    return tuple(incoming), tuple(outgoing)


class _Part:
    """The part of one host while it is built."""

    def __init__(self, step: Graph, host: str, hosts: tuple[str, ...]) -> None:
        self.step, self.host, self.hosts = step, host, hosts
        self.clockwork = clockwork(step)
        self.deadlines = deadlines(step, hop=len(step.ops) // _HOP)
        self.later = {blob for blob, when in deadlines(step, hop=0).items() if when >= SPAN}
        """The blobs that are not needed before the next iteration."""
        self.collectives = collectives_of(step, self.clockwork)
        self.places = places_of(step)
        self.builder = Builder()

    def graph(self) -> Graph:
        step, builder, host = self.step, self.builder, self.host
        for blob in step.blobs.values():
            if blob.location.host == host:
                builder.add(blob)
        transfers = list(self._transfers())
        crossing = {transfer.name for transfer in transfers}
        crossing |= {name for one in self.collectives for name in one.ops}
        for op in step.ops.values():
            if op.location.host == self.host and op.name not in crossing:
                self._add(op)
        for state in step.states.values():
            if step.blobs[state.read].location.host == self.host:
                builder.add(state)
        for name in self.clockwork.intersection(step.outputs):
            self._computed(name, self._home(self.host))
        results = (result_of(name, self.host) for name in step.outputs)
        builder.outputs = [n for n in (*step.outputs, *results) if n in builder.blobs]
        halves: dict[str, str] = {}
        posts: dict[str, list[tuple[int, _Transfer]]] = {}
        for channel, transfer in _numbered(transfers):
            if transfer.board is not None and transfer.source.host == host:
                posts.setdefault(transfer.read or "", []).append((channel, transfer))
            else:
                halves[transfer.name] = self._add_half(channel, transfer)
        for read, ends in posts.items():
            halves |= dict.fromkeys((one.name for _, one in ends), self._add_post(read, ends))
        self._adjoin(posts)
        own = {one: self._add_collective(one) for one in self.collectives if host in one.hosts}
        builder.control |= set(_in_order(own))
        builder.control |= {edge for edge in step.control if builder.ops.keys() >= set(edge)}
        builder.control |= set(self._through_others(transfers, halves, own))
        return builder.graph()

    def _add(self, op: Op) -> None:
        """Add an op. If it copies a value that this host computes itself, it reads that value."""
        (source, *_) = op.inputs or ("",)
        if op.kind == "Copy" and self.step.blobs[source].location.host != self.host:
            location = self._computed(source, self._home(self.host))
            settings = {"alias": True} if shares_memory(location, op.location) else {}
            op = replace(op, attributes=settings)
        self.builder.add(op)

    def _computed(self, blob: str, location: Location) -> Location:
        """The blob in which this host has a scalar of the clock; its ops are added if needed."""
        if blob in self.builder.blobs:
            return self.builder.blobs[blob].location
        step, builder = self.step, self.builder
        builder.add(replace(step.blobs[blob], location=location))
        if blob in step.states:
            state = step.states[blob]
            builder.add(state)
            if state.next != blob:
                self._computed(state.next, location)
        if blob in step.producers:
            op = step.producers[blob]
            for name in op.inputs:
                self._computed(name, location)
            for name in op.outputs:
                if name not in builder.blobs:
                    builder.add(replace(step.blobs[name], location=location))
            builder.add(replace(op, location=location))
        return location

    def _transfers(self) -> Iterator[_Transfer]:
        """The transfers of a step, in its order, that have an end at this host."""
        step, together = self.step, {name for one in self.collectives for name in one.copies}
        for op in step.ops.values():
            if op.kind != "Copy" or op.name in together or op.inputs[0] in self.clockwork:
                continue
            source, target = step.blobs[op.inputs[0]], step.blobs[op.outputs[0]]
            ends = source.location, target.location
            if ends[0].host != ends[1].host and self.host in (ends[0].host, ends[1].host):
                byte = self.places[source.name] if is_posted(op) else None
                yield _Transfer(op.name, *ends, source.name, target, board=byte)
        for name in step.outputs:
            blob = step.blobs[name]
            sent = blob.shape == () and name not in self.clockwork
            spread = any(result_of(name, other) in step.blobs for other in self.hosts)
            for other in self.hosts if sent and not spread else ():
                home = blob.location
                if other != home.host and self.host in (other, home.host):
                    device = self._home(other)
                    copy = replace(blob, name=result_of(name, other), location=device)
                    yield _Transfer(copy.name, home, device, name, copy)
        for before, after in sorted(step.control):
            one, two = step.ops[before].location, step.ops[after].location
            if one.host != two.host and self.host in (one.host, two.host):
                yield _Transfer(f"signal/{before}/{after}", one, two, None, None, before, after)

    def _home(self, host: str) -> Location:
        """The first device of a host."""
        return min(op.location for op in self.step.ops.values() if op.location.host == host)

    def _through_others(
        self,
        transfers: list[_Transfer],
        halves: dict[str, str],
        together: dict[Collective, str],
    ) -> Iterator[tuple[str, str]]:
        """Control edges from puts to the arrivals that other hosts send because of them.

        The part of this host in a collective counts as a put and an arrival.

        An arrival comes after these puts anyway. The edges make this visible to passes that see
        only this part: two ops with a path between them through another host must not become one
        segment.

        If the graph does not show how another host computes a value, the value may depend on
        everything that this host sends at the start of an iteration, that is, on values computed
        from states alone. Arrivals that are not needed before the next iteration then wait, through
        one fence, for the puts of all these values, except those that come from another host.
        """
        step, given = self.step, early(self.step)
        late: set[str] = set()
        """The arrivals that are needed in the next iteration."""
        first: set[str] = set()
        """The puts of what is there from the start."""
        puts: dict[str, set[str]] = {}
        """By op of another host the puts that it waits for."""
        arrivals: dict[str, list[str]] = {}
        """By op of another host the arrivals that wait for it."""
        waits: dict[str, set[str]] = {}
        """By arrival the puts that it waits for."""
        for transfer in transfers:
            before, after, half = transfer.before, transfer.after, halves[transfer.name]
            if transfer.read is not None:
                maker = step.producers.get(transfer.read)
                before = None if maker is None else maker.name
                after = transfer.name if transfer.name in step.ops else None
            if transfer.source.host == self.host and after is not None:
                puts.setdefault(after, set()).add(half)
                if transfer.read in given:
                    first.add(half)
            elif transfer.target.host == self.host and before is not None:
                arrivals.setdefault(before, []).append(half)
                if transfer.written and transfer.written.name in self.later:
                    late.add(half)
            elif transfer.target.host == self.host and transfer.read not in step.states:
                waits[half] = first
                late.add(half)
        for one, half in together.items():
            readers, makers = self._others_of(one)
            for name in readers:
                puts.setdefault(name, set()).add(half)
            for name in makers:
                arrivals.setdefault(name, []).append(half)
        self._pass_on(puts, arrivals, waits, first)
        waits = _thinned(waits, {half: one for one, half in together.items()})
        own = _at_one_host(step, given)
        first = {halves[t.name] for t in transfers if halves[t.name] in first and t.read in own}
        behind = [name for name in late if not first.isdisjoint(waits.get(name, ()))]
        yield from self._fenced(first, behind, waits)

    def _pass_on(
        self,
        puts: dict[str, set[str]],
        arrivals: dict[str, list[str]],
        waits: dict[str, set[str]],
        first: set[str],
    ) -> None:
        """Follow the puts through other hosts to the arrivals that wait for them."""
        step = self.step
        chained = dict(_in_order({one: one.op for one in self.collectives if one.kind == REDUCE}))
        hidden = {name for name in step.inputs if step.blobs[name].location.host != self.host}
        for name in in_depth(step) if chained else step.order:
            if not hidden.isdisjoint(step.ops[name].inputs):
                puts.setdefault(name, set()).update(first)
            if name in puts and step.ops[name].location.host != self.host:
                for half in arrivals.get(name, ()):
                    waits[half] = waits[half] | puts[name] if half in waits else puts[name]
                behind = [chained[name]] if name in chained else []
                for following in (*step.successors[name], *behind):
                    puts.setdefault(following, set()).update(puts[name])

    def _others_of(self, one: Collective) -> tuple[list[str], list[str]]:
        """The ops of other hosts that wait for this host in a collective, and the ops before it.

        Each host of a collective may wait for all others.
        """
        step = self.step
        readers = [name for name in one.ops if step.ops[name].location.host != self.host]
        if one.kind == BROADCAST:
            return readers, []
        makers = (step.producers.get(name) for name in step.ops[one.op].inputs)
        return readers, [op.name for op in makers if op and op.location.host != self.host]

    def _fenced(
        self, first: set[str], behind: list[str], waits: dict[str, set[str]]
    ) -> Iterator[tuple[str, str]]:
        """The control edges from puts to arrivals; a fence stands between the `first` puts and the
        arrivals `behind` them."""
        if len(behind) > 1 and len(first) > 1:
            at = self._home(self.host)
            fence = self.builder.fresh("fence")
            self.builder.op(fence, "Fence", (), (), location=at, lane="inbound")
            yield from ((put, fence) for put in first)
            yield from ((fence, arrival) for arrival in behind)
            waits = {**waits, **{arrival: waits[arrival] - first for arrival in behind}}
        for arrival, puts in waits.items():
            yield from ((put, arrival) for put in puts)

    def _add_half(self, channel: int, transfer: _Transfer) -> str:
        """Add the put or the arrival of a transfer, and return its name."""
        builder = self.builder
        outgoing = transfer.source.host == self.host
        peer = transfer.target.host if outgoing else transfer.source.host
        ends: dict[str, Attribute] = {"peer": peer, "channel": channel}
        origin = Origin(transfer.read or transfer.name, "copy")
        if outgoing:
            name = builder.fresh(f"put/{transfer.name}")
            read = () if transfer.read is None else (transfer.read,)
            at, blob = transfer.source, transfer.written
            if blob is not None and size_in_bytes(blob) > _TINY:
                ends["deadline"] = self.deadlines.get(blob.name, 2 * SPAN)
            builder.op(name, "Put", read, (), ends, location=at, lane="outbound", origin=origin)
            if transfer.before is not None:
                builder.control.add((transfer.before, name))
            return name
        written = () if transfer.written is None else (transfer.written.name,)
        if transfer.written is not None and transfer.written.name not in builder.blobs:
            builder.add(transfer.written)
            builder.outputs.append(transfer.written.name)
        name, at = transfer.name, transfer.target
        if transfer.board is not None:
            ends["board"] = transfer.board
        builder.op(name, "Arrival", (), written, ends, location=at, lane="inbound", origin=origin)
        if transfer.after is not None:
            builder.control.add((name, transfer.after))
        return name

    def _add_post(self, blob: str, ends: list[tuple[int, _Transfer]]) -> str:
        """Add the post of a blob for several hosts, and return its name."""
        builder, transfers = self.builder, [transfer for _, transfer in ends]
        name, result = builder.fresh(f"post/{copied_from(transfers[0].name)}"), posted(blob)
        builder.add(replace(self.step.blobs[blob], name=result, where=None))
        settings: dict[str, Attribute] = {"board": self.places[blob]}
        settings["peers"] = tuple(transfer.target.host for transfer in transfers)
        settings["channels"] = tuple(channel for channel, _ in ends)
        if size_in_bytes(self.step.blobs[blob]) > _TINY:
            names = (transfer.written.name for transfer in transfers if transfer.written)
            settings["deadline"] = min(self.deadlines.get(name, 2 * SPAN) for name in names)
        at, of = self.step.blobs[blob].location, Origin(blob, "copy")
        read, written = (blob,), (result,)
        builder.op(name, POST, read, written, settings, location=at, lane="outbound", origin=of)
        return name

    def _adjoin(self, posts: Collection[str]) -> None:
        """Let joins read posted values on the board, also those that this host has posted
        itself."""
        builder = self.builder
        here = {o.outputs[0] for o in builder.ops.values() if o.attributes.get("board") is not None}
        own = {blob: posted(blob) for blob in posts}
        for op in list(builder.ops.values()):
            inputs = tuple(own.get(name, name) for name in op.inputs)
            if op.kind == "aten.cat" and here.issuperset(inputs):
                builder.ops[op.name] = replace(op, kind=ADJOIN, inputs=inputs, attributes={})

    def _add_collective(self, one: Collective) -> str:
        """Add the part of this host in a collective, and return its name."""
        step, builder, roots = self.step, self.builder, one.root == self.host
        call: dict[str, Attribute] = {"root": one.root, "hosts": one.hosts, "number": one.number}
        if one.gpus:
            call["gpus"] = one.gpus  # whose collectives have one stream, whatever they are
        read: tuple[str, ...] = (one.op,) if roots else ()
        if one.kind == BROADCAST:
            copies = (name for name in one.copies if step.ops[name].location.host == self.host)
            name = builder.fresh(f"broadcast/{one.op}") if roots else next(copies)
            written = () if roots else step.ops[name].outputs
            lane, origin = "outbound" if roots else "inbound", Origin(one.op, "copy")
        else:
            op = step.ops[one.op]
            name, lane, origin = op.name, op.lane, origin_of(op)
            hosts = [step.blobs[blob].location.host for blob in op.inputs]
            read = tuple(b for b, host in zip(op.inputs, hosts, strict=True) if host == self.host)
            written = op.outputs if roots else ()
            share = hosts.index(self.host) // op.whole("groups", 1)
            call["weight"] = (op.items("weights") or [1.0 / len(one.hosts)] * len(hosts))[share]
        at, lane = step.blobs[(*read, *written)[0]].location, "inbound" if one.gpus else lane
        builder.op(name, one.kind, read, written, call, location=at, lane=lane, origin=origin)
        return name


def _at_one_host(step: Graph, given: Collection[str]) -> set[str]:
    """Those of the `given` blobs whose ops wait for no other host."""
    behind: set[str] = set()
    for op in step.in_order:
        host, after = op.location.host, step.successors[op.name]
        reads = step.blobs[op.inputs[0]].location if op.kind == "Copy" else op.location
        if op.name in behind or reads.host != host:
            behind.update(after, [op.name])
        else:
            behind.update(name for name in after if step.ops[name].location.host != host)
    makers = ((blob, step.producers.get(blob)) for blob in given)
    return {blob for blob, maker in makers if maker is None or maker.name not in behind}


def _thinned(
    waits: Mapping[str, set[str]], together: Mapping[str, Collective]
) -> dict[str, set[str]]:
    """Of the collectives of one order that an op waits for, keep only the last."""
    thin: dict[str, set[str]] = {}
    for name, before in waits.items():
        last: dict[Group, int] = {}
        for one in map(together.get, before):
            if one is not None:
                last[one.order] = max(one.number, last.get(one.order, 0))
        thin[name] = {
            half
            for half in before
            if half not in together or together[half].number == last[together[half].order]
        }
    return thin if together else dict(waits)


def _in_order(ops: Mapping[Collective, str]) -> Iterator[tuple[str, str]]:
    """Control edges between the ops of collectives, which fix their order."""
    last: dict[Group, str] = {}
    for one, name in ops.items():
        if one.order in last:
            yield last[one.order], name
        last[one.order] = name


def _numbered(transfers: list[_Transfer]) -> Iterator[tuple[int, _Transfer]]:
    """The transfers, numbered for each pair of hosts in the order of their names."""
    numbers: dict[tuple[str, str], int] = {}
    for transfer in sorted(transfers, key=lambda transfer: transfer.name):
        pair = transfer.source.host, transfer.target.host
        numbers[pair] = numbers.get(pair, -1) + 1
        yield numbers[pair], transfer
