"""Synchronous data parallelism over several hosts.

Inside each host the gradients of its replicas are averaged first, so a host sends one value of each
to others. Hosts reduce along a spanning tree, whose root owns the parameter and updates it, and new
values return along the same tree; inside a host all replicas read the value that arrived. The
topology is the form of the tree; with `native`, collectives of all hosts replace it. Large
parameters are cut into units, whose owners alternate between hosts.

A host needs only its transfers with others. With `only`, the graph holds the replicas of that host,
the ops that exist once, and of other hosts only the ends of their transfers. Its size does not
depend on the number of hosts, except for values that a host receives from all others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property

from purine.analysis.infer import size_in_bytes
from purine.graph import NOTHING, Attribute, Blob, Builder, Graph, Location, Origin
from purine.graph.names import result_of
from purine.parallel._parts import (
    BESIDE,
    Part,
    add_average,
    add_joined,
    add_next,
    add_once,
    add_outputs,
    add_part,
    add_reduction,
    homes_of,
    is_scalar,
    joined_of,
)
from purine.parallel.halves import Halves, halve, shared_out
from purine.parallel.reduce import FORMS, Topology
from purine.parallel.routes import Form, Route
from purine.parallel.units import Cut, in_units, without_joins
from purine.placement.copies import add_copy
from purine.placement.devices import devices_of, is_cpu
from purine.registry.clock import ITERATION, SEED, clockwork

__all__ = ["HostReplicas"]


class HostReplicas:
    """The graph of replicas on several hosts while it is built."""

    def __init__(
        self,
        steps: Sequence[Graph],
        parts: Sequence[Part],
        *,
        topology: Topology,
        bucket: int,
        unit: int,
        shared: bool = False,
        only: str | None = None,
    ) -> None:
        self.topology, self.bucket, self.shared = topology, bucket, shared
        cut = cache(lambda step: in_units(step, unit))
        self.base, self.cuts = cut(steps[0])
        self.steps = [cut(step)[0] for step in steps]
        halves = cache(lambda step: without_joins(halve(step), self.cuts))
        self.halves: list[Halves] = [halves(step) for step in self.steps]
        self.own = devices_of(self.base)
        self.parts = parts
        self.joined = joined_of(self.base, self.halves[0])
        one = all(step is self.base for step in self.steps)
        apart = one and all(len({part.located(at).host for at in self.own}) == 1 for part in parts)
        apart = apart and not self.joined.ops and topology != "native"
        self.only = only if apart else None
        first = self.own[0]  # with `only`, a replica is on one host
        self.shown = [part for part in self.parts if self.shows(part.located(first).host)]
        self.builder = Builder()
        self.group = cache(self._group)
        self.hosts = cache(self._hosts)
        self.shares = cache(self._shares)
        self.turns = cache(self._turns)

    def _group(self, location: Location) -> dict[str, list[Part]]:
        """By host the replicas whose nodes for a location of the step are there."""
        group: dict[str, list[Part]] = {}
        for part in self.parts:
            group.setdefault(part.located(location).host, []).append(part)
        return group

    def _hosts(self, location: Location) -> tuple[tuple[str, ...], dict[str, int]]:
        hosts = tuple(self.group(location))
        return hosts, {host: number for number, host in enumerate(hosts)}

    def _shares(self, location: Location) -> dict[str, float]:
        return {
            host: sum(part.size for part in replicas) / replicas[0].whole
            for host, replicas in self.group(location).items()
        }

    def shows(self, host: str) -> bool:
        return self.only is None or self.only == host

    # What is reduced together, and where.

    @cached_property
    def gradients(self) -> dict[str, str]:
        """By whole parameter its gradient in each replica."""
        units = {unit for cut in self.cuts.values() for unit in cut.units}
        known = {p: g for p, g in self.halves[0].gradients.items() if p not in units}
        known |= {cut.parameter: cut.gradient for cut in self.cuts.values()}
        return {p: g for p, g in known.items() if g not in self.joined.blobs}

    @cached_property
    def buckets(self) -> list[tuple[str, ...]]:
        """The parameters in the order of their gradients: each alone, or several small ones."""
        base = self.base
        rank = {name: k for k, op in enumerate(self.halves[0].batch) for name in op.outputs}
        buckets: list[tuple[str, ...]] = []
        waiting: dict[Location, list[str]] = {}
        for parameter in sorted(self.gradients, key=lambda p: rank[self.gradients[p]]):
            blob = base.blobs[parameter]
            if parameter in self.cuts or size_in_bytes(blob) > self.bucket:
                buckets.append((parameter,))
                continue
            group = waiting.setdefault(blob.location, [])
            group.append(parameter)
            if sum(size_in_bytes(base.blobs[name]) for name in group) >= self.bucket:
                buckets.append(tuple(waiting.pop(blob.location)))
        return buckets + [tuple(group) for group in waiting.values()]

    def _turns(self, count: int) -> dict[str, int]:
        """The device of each parameter among the `count` devices of a host."""
        blobs = self.base.blobs
        sizes = {bucket[0]: sum(size_in_bytes(blobs[p]) for p in bucket) for bucket in self.buckets}
        turns = shared_out(sizes, lambda _: range(count))
        return {name: turns[bucket[0]] for bucket in self.buckets for name in bucket}

    def home(self, name: str, host: str) -> Location:
        """The device of a host that has a parameter, or a blob that exists once."""
        location = self.base.blobs[name].location
        replicas = self.group(location)[host]
        devices = list(dict.fromkeys(part.located(location) for part in replicas))
        return devices[self.turns(len(devices)).get(name, 0)]

    @cached_property
    def owners(self) -> dict[str, Location]:
        """The owner of each parameter or unit: the host that owns least so far, in their order."""
        load: Counter[str] = Counter()
        owners: dict[str, Location] = {}
        blobs = self.base.blobs
        for bucket in self.buckets:
            hosts, _ = self.hosts(blobs[bucket[0]].location)
            cut = self.cuts.get(bucket[0])
            for names in [bucket] if cut is None else [(unit,) for unit in cut.units]:
                host = hosts[0] if self.topology == "server" else min(hosts, key=load.__getitem__)
                load[host] += sum(size_in_bytes(blobs[name]) for name in names)
                owners |= dict.fromkeys(names, self.home(bucket[0], host))
        return owners

    def route(self, location: Location, root: str, form: Form) -> Route:
        hosts, places = self.hosts(location)
        return Route(hosts, places, root, form)

    # The graph.

    def graph(self) -> Graph:
        base, builder, halves = self.base, self.builder, self.halves[0]
        batch, homes = halves.made(), homes_of(base, halves, self.parts[0], self.owners)
        joints = {
            name for cut in self.cuts.values() for name in (cut.parameter, *cut.split.outputs)
        }
        for name, blob in base.blobs.items():
            if name not in batch and name not in joints:
                builder.add(replace(blob, location=homes[name]))
        for step, own, part in zip(self.steps, self.halves, self.parts, strict=True):
            if part in self.shown:
                joined = self.joined if step is self.base else joined_of(step, own)
                reads = {p: self._joined(p, part) for p in self.cuts}
                add_part(builder, step, own, part, reads, joined)
        add_joined(builder, base, self.joined, self.parts)
        self._add_parameters(homes)
        self._add_reductions()
        for op in halves.once:
            add_once(builder, op, homes)
        copied = batch - self.joined.blobs
        nexts = {s.next: homes[name] for name, s in base.states.items() if s.next in copied}
        self._add_nexts([replace(base.blobs[name], location=at) for name, at in nexts.items()])
        for state in base.states.values():
            builder.add(state)
        self._add_outputs(copied)
        builder.control |= {edge for edge in base.control if builder.ops.keys() >= set(edge)}
        return builder.graph()

    # Parameters on their way to the hosts.

    def _joined(self, parameter: str, part: Part) -> str:
        """The name of a cut parameter on the host of a replica."""
        return f"{part.located(self.base.blobs[parameter].location).host}/{parameter}"

    def _add_parameters(self, homes: Mapping[str, Location]) -> None:
        """Send the parameters that replicas read to their hosts, and join the units."""
        base, batch = self.base, self.halves[0].made()
        read = dict.fromkeys(name for op in self.halves[0].batch for name in op.inputs)
        once = {op.name for op in self.halves[0].once}
        for name in read:
            if name in batch or name in (SEED, ITERATION, NOTHING) or name in self.cuts:
                continue
            maker = base.producers.get(name)
            if name in base.states or (maker is not None and maker.name in once):
                form = FORMS[self.topology] if name in self.owners else "tree"
                self._spread(name, name, homes[name].host, form)
        for parameter, cut in self.cuts.items():
            for unit in cut.units:
                form = FORMS[self.topology]
                self._spread(unit, parameter, self.owners[unit].host, form)
            self._join(parameter, cut)

    def _spread(self, name: str, parameter: str, root: str, form: Form) -> None:
        """Copy a blob from its owner to the other hosts, along their route.

        In memory that hosts share, the owner posts a state for all of them.
        """
        location = self.base.blobs[parameter].location
        board = self.shared and name in self.base.states and self._goes_to_all(location)
        route = self.route(location, root, "flat" if board else form)
        copies = {0: name}
        for number in self._receivers(route):
            source = copies.get(route.parent(number), name)
            location = self.home(parameter, route.host(number))
            copies[number] = add_copy(self.builder, name, location, source, board=board)

    def _goes_to_all(self, location: Location) -> bool:
        """Whether each host of the step has a replica there, on cores."""
        every = {part.located(at).host for part in self.parts for at in self.own}
        cores = all(is_cpu(part.located(location)) for part in self.parts)
        return cores and self.group(location).keys() == every

    def _receivers(self, route: Route) -> Iterator[int]:
        """The numbers of the hosts that get a copy along a route, parents first.

        With `only`, these are the host itself, its parent and its children.
        """
        numbers: Iterable[int] = range(len(route.hosts))
        if self.only is not None:
            own = route.number(self.only)
            numbers = dict.fromkeys((route.parent(own), own, *route.children(own)))
        return (number for number in numbers if number > 0)

    def _join(self, parameter: str, cut: Cut) -> None:
        """Join the units of a parameter on each host."""
        blob = self.base.blobs[parameter]
        for host in self.group(blob.location):
            if self.shows(host):
                home = self.home(parameter, host)
                whole = replace(blob, name=f"{host}/{parameter}", location=home)
                self.builder.add(whole)
                name, outputs = f"{host}/{cut.join.name}", (whole.name,)
                join = replace(cut.join, name=name, outputs=outputs, location=home, lane=BESIDE)
                self.builder.add(join)

    # Gradients on their way to the owners.

    def _add_reductions(self) -> None:
        base = self.base
        for bucket in self.buckets:
            cut = self.cuts.get(bucket[0])
            if cut is None:
                blobs = [base.blobs[self.gradients[name]] for name in bucket]
                owner = self.owners[bucket[0]]
                self._reduce(blobs, bucket[0], owner, FORMS[self.topology])
            else:
                self._reduce_units(cut)

    def _reduce(self, blobs: Sequence[Blob], leader: str, owner: Location, form: Form) -> None:
        """Average blobs that all replicas have, at their owner."""
        wholes = [replace(blob, location=owner) for blob in blobs]
        route = self.route(blobs[0].location, owner.host, form)
        if len(route.hosts) == 1:
            self._add_mean(wholes, self.group(blobs[0].location)[owner.host])
            return
        self._along(route, lambda host: self._values(blobs, leader, host), wholes, leader)

    def _reduce_units(self, cut: Cut) -> None:
        whole = self.base.blobs[cut.gradient]
        units = [self.base.blobs[name] for name in cut.split.outputs]
        for host in filter(self.shows, self.group(whole.location)):
            (value,) = self._values([whole], cut.parameter, host)
            home = self.home(cut.parameter, host)
            own = [replace(unit, name=f"{host}/{unit.name}", location=home) for unit in units]
            settings = cut.split.attributes
            name = f"{host}/{cut.split.name}"
            kind = cut.split.kind
            add_reduction(self.builder, kind, [value], own, settings, name=name, of=cut.parameter)
        for unit, name in zip(units, cut.units, strict=True):
            owner = self.owners[name]
            route = self.route(whole.location, owner.host, FORMS[self.topology])

            def value_of(host: str, unit: Blob = unit) -> list[str]:
                home = self.home(cut.parameter, host)
                own = replace(unit, name=f"{host}/{unit.name}", location=home)
                return self._known([own])

            self._along(route, value_of, [replace(unit, location=owner)], cut.parameter)

    def _values(self, blobs: Sequence[Blob], leader: str, host: str) -> list[str]:
        """The values of blobs on a host: those of its replica, or the means of several."""
        replicas = self.group(blobs[0].location)[host]
        if len(replicas) == 1:
            part = replicas[0]
            return self._known(
                [
                    replace(b, name=part.name(b.name), location=part.located(b.location))
                    for b in blobs
                ]
            )
        home = self.home(leader, host)
        means = [replace(blob, name=f"{host}/{blob.name}", location=home) for blob in blobs]
        if self.shows(host) and means[0].name not in self.builder.blobs:
            self._add_mean(means, replicas, [blob.name for blob in blobs])
        return self._known(means)

    def _known(self, blobs: Sequence[Blob]) -> list[str]:
        """The names of blobs; those that other hosts make are added without their makers."""
        for blob in blobs:
            if blob.name not in self.builder.blobs:
                self.builder.add(blob)
        return [blob.name for blob in blobs]

    def _add_mean(
        self, means: Sequence[Blob], replicas: Sequence[Part], names: Sequence[str] | None = None
    ) -> None:
        """Average blobs over the replicas of one host."""
        names = [blob.name for blob in means] if names is None else names
        sizes = [part.size for part in replicas]
        weights = tuple(size / sum(sizes) for size in sizes)
        settings: dict[str, Attribute] = {"weights": weights} if len(set(sizes)) > 1 else {}
        values = [part.name(name) for part in replicas for name in names]
        add_average(self.builder, values, means, settings)

    def _along(
        self, route: Route, values: Callable[[str], list[str]], wholes: Sequence[Blob], leader: str
    ) -> None:
        """Add up the values of all hosts along a route; the root writes their weighted mean.

        A flat route is one collective.
        """
        shares = self.shares(self.base.blobs[leader].location)
        even = len(set(shares.values())) == 1
        if route.form == "flat":
            weights: dict[str, Attribute] = {} if even else {"weights": tuple(shares.values())}
            parts = [name for host in shares for name in values(host)]
            add_average(self.builder, parts, wholes, weights, "Reduce")
            return

        def sums(number: int) -> list[Blob]:
            """The output of the host with this number."""
            host = route.host(number)
            if not number:
                return list(wholes)
            home = self.home(leader, host)
            return [replace(blob, name=f"{host}/{blob.name}/sum", location=home) for blob in wholes]

        def total(number: int) -> list[str]:
            """The value that the host with this number passes to its parent."""
            if route.children(number):
                return self._known(sums(number))
            return values(route.host(number))

        for number, inputs in self._nodes(route, values, total):
            children = route.children(number)
            # Hosts without children pass their own value on, which counts with their share.
            own = () if even else (number, *(k for k in children if not route.children(k)))
            scale = 1.0 / len(shares) if even and not number else 1.0
            counts = (shares[route.host(k)] if k in own else 1.0 for k in (number, *children))
            settings: dict[str, Attribute] = {"weights": tuple(scale * w for w in counts)}
            if len(inputs) == 1 or (even and not number and route.is_flat):
                settings = {}
            rows = [name for row in inputs for name in row]
            add_average(self.builder, rows, sums(number), settings)

    def _nodes(
        self, route: Route, values: Callable[[str], list[str]], total: Callable[[int], list[str]]
    ) -> Iterator[tuple[int, list[list[str]]]]:
        """The hosts that add values, with their inputs, leaves first.

        With `only`, the sum of a parent is shown with the input from this host alone; its readers
        give the deadline of that value.
        """

        def inputs(number: int) -> list[list[str]]:
            own = values(route.host(number))
            return [own, *(total(child) for child in route.children(number))]

        if self.only is None:
            for number in reversed(range(len(route.hosts))):
                if route.children(number) or not number:
                    yield number, inputs(number)
            return
        own = route.number(self.only)
        if route.children(own) or not own:
            yield own, inputs(own)
        if own:
            parent = route.parent(own)
            yield parent, [total(own)]
            if parent:
                yield 0, [total(parent)]

    # What else all replicas have a part in.

    def _add_nexts(self, nexts: Sequence[Blob]) -> None:
        """Add the next values of states that all replicas update; small ones go together."""
        groups: dict[tuple[Location, Location, str, str], list[Blob]] = {}
        for following in nexts:
            own = self.base.blobs[following.name]
            if "float" not in following.dtype:
                add_next(self.builder, following, self.shown[:1])
                continue
            alone = following.name if size_in_bytes(own) > self.bucket else ""
            key = own.location, following.location, following.dtype, alone
            groups.setdefault(key, []).append(own)
        for (_, home, _, _), blobs in groups.items():
            self._reduce(blobs, blobs[0].name, home, "tree")

    def _add_outputs(self, copied: frozenset[str]) -> None:
        base, borders = self.base, set(self.halves[0].gradients.values())
        scalars = [n for n in base.outputs if n in copied and is_scalar(base.blobs[n])]
        for name in scalars:
            blob = base.blobs[name]
            self._reduce([blob], name, self.parts[0].located(blob.location), "tree")
        rest = copied.difference(borders, scalars)
        add_outputs(self.builder, base, rest, self.shown)
        own = clockwork(base)
        for name in list(self.builder.outputs):
            if self.builder.blobs[name].shape == () and name in base.outputs and name not in own:
                self._spread_result(name)

    def _spread_result(self, name: str) -> None:
        """Copy a scalar that the step returns to all hosts, each of which has a part of the
        batch."""
        builder, root = self.builder, self.builder.blobs[name].location.host
        devices: dict[str, Location] = {}
        for part in self.parts:
            for at in map(part.located, self.own):
                devices[at.host] = min(at, devices.get(at.host, at))
        hosts = tuple(devices)
        route = Route(hosts, {host: number for number, host in enumerate(hosts)}, root, "star")
        copies = {0: name}
        for number in self._receivers(route):
            at = devices[route.host(number)]
            at = at if is_cpu(at) else replace(at, device="cpu:0")
            source = copies.get(route.parent(number), name)
            result = replace(builder.blobs[name], name=result_of(name, at.host), location=at)
            builder.add(result)
            copies[number], origin = result.name, Origin(name, "copy")
            ends = (source,), (result.name,)
            builder.op(result.name, "Copy", *ends, location=at, lane="inbound", origin=origin)
