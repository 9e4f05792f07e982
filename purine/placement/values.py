"""Values of states between a net and its sharded form: cut for one, joined for the other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from purine.arguments import checked
from purine.errors import ConfigError
from purine.graph import Blob, Graph
from purine.graph.names import slot_of
from purine.registry.fillers import Shard, drawn_as, shard_of

__all__ = ["gather_values", "merged_spans", "shard_values", "shards_of", "starts", "wholes_of"]


@checked
def shard_values(graph: Graph, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Values of the states of a net, cut for its sharded form `graph`.

    What a solver remembers of a parameter is cut as the parameter is. States that are not cut keep
    their values. A state of a worker gets the value of the net's state that it starts as.
    """
    pieces: dict[str, Tensor] = {}
    used: set[str] = set()
    for name, (whole, part) in shards_of(graph).items():
        if whole in values:
            shape = tuple(values[whole].shape)
            if shape != part.whole:
                what = f"the value of {whole!r} has another size than the net it is for"
                found, remedy = f"size {list(shape)}", "give the values of the net that was sharded"
                raise ConfigError(what, f"size {list(part.whole)}", found, remedy, blob=whole)
            pieces[name] = part.take(values[whole])
            used.add(whole)
    for name, whole in starts(graph).items():
        if whole in values:
            pieces.setdefault(name, values.get(name, values[whole]))
            used.add(whole)
    return {**{name: value for name, value in values.items() if name not in used}, **pieces}


@checked
def gather_values(graph: Graph, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Values of the states of a sharded net or step, under the names and in the form of the net.

    Of a state of which each worker has its own, and which is not shared, it is the mean.

    >>> import purine as pu
    >>> import torch
    >>> net = pu.zoo.mlp(batch=8)
    >>> cut = pu.parallel.shard(net, "cpu:0-1")
    >>> values = {name: torch.zeros(cut.blobs[name].shape) for name in cut.states}
    >>> gather_values(cut, values).keys() == net.states.keys()
    True
    """
    shards, own = shards_of(graph), starts(graph)
    wholes: dict[str, Tensor] = {}
    copies: dict[str, list[Tensor]] = {}
    for name, value in values.items():
        if name in own:
            if graph.states[name].shared:
                wholes[own[name]] = value
            else:
                copies.setdefault(own[name], []).append(value)
            continue
        if name not in shards:
            wholes[name] = value
            continue
        whole, part = shards[name]
        if whole not in wholes:
            wholes[whole] = value.new_empty(part.whole)
        part.put(value, wholes[whole])
    means = {name: _mean(values_of) for name, values_of in copies.items() if name not in wholes}
    return {**wholes, **means}


def _mean(copies: Sequence[Tensor]) -> Tensor:
    """The mean of what workers have of a state; of counts that of the first worker."""
    first = copies[0]
    return torch.stack(list(copies)).mean(dim=0) if first.is_floating_point() else first


def merged_spans(spans: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Spans in order, with those that touch as one.

    >>> merged_spans([(4, 6), (0, 2), (2, 4), (8, 9)])
    ((0, 6), (8, 9))
    """
    merged: list[tuple[int, int]] = []
    for low, high in sorted(spans):
        if merged and merged[-1][1] == low:
            low = merged.pop()[0]
        merged.append((low, high))
    return tuple(merged)


def wholes_of(graph: Graph) -> dict[str, Blob]:
    """The whole states that the states of a graph are, or are shards of, as blobs."""
    shards, wholes, own = shards_of(graph), dict[str, Blob](), starts(graph)
    for name in graph.states:
        blob = graph.blobs[name]
        if name in own:
            blob = replace(blob, name=own[name])
        if name in shards:
            whole, part = shards[name]
            blob = replace(blob, name=whole, shape=part.whole)
        wholes[blob.name] = blob
    return wholes


def starts(graph: Graph) -> dict[str, str]:
    """By state beside those of the net, as workers have, the one whose value it has or takes."""
    names = {
        name: state.shared or drawn_as(state.filler) or name for name, state in graph.states.items()
    }
    return {name: whole for name, whole in names.items() if whole != name}


def shards_of(graph: Graph) -> dict[str, tuple[str, Shard]]:
    """The states that are shards, with the names of their wholes: parameters and their memories."""
    parts = {name: shard_of(state.filler) for name, state in graph.states.items()}
    own = {name: part for name, part in parts.items() if part is not None}
    shards = {name: (part.of, part) for name, part in own.items()}
    for name, state in graph.states.items():
        parameter = None if state.origin is None else state.origin.of
        if parameter in own:
            whole = own[parameter].of
            shards[name] = (slot_of(name.removesuffix(f"/{parameter}"), whole), own[parameter])
    return shards
