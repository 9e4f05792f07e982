"""Nodes of normalisation, copies and detaching, which do not become one op of the same name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch.fx import Node

from purine.graph import Attribute
from purine.importers.torch.emitter import Emitter, kind_name, value_of

__all__ = ["COPIES", "NORMS"]


def _batch_norm(t: Emitter, node: Node) -> bool:
    """Batch norm as our kinds, which autodiff has a rule for."""
    x = t.tensor(node, "input")
    channels = value_of(x).shape[1]
    functional = kind_name(node) == "aten._native_batch_norm_legit_functional"
    training = functional and bool(t.argument(node, "training"))
    inputs = [t.blobs[x]]
    for name, value in (("weight", 1.0), ("bias", 0.0)):
        given = t.argument(node, name)
        settings: dict[str, Attribute] = {
            "size": (channels,),
            "fill_value": value,
            "dtype": t.dtype_of(node),
        }
        inputs.append(
            t.blobs[given]
            if isinstance(given, Node)
            else t.extra(node, name, "aten.full", [], settings, (channels,))
        )
    statistics = [t.tensor(node, name) for name in ("running_mean", "running_var")]
    inputs += [t.blobs[statistic] for statistic in statistics]
    rates: dict[str, Attribute] = {name: t.number(node, name) for name in ("momentum", "eps")}
    results = t.results_of(node, 5 if training else len(node.meta["val"]))
    if any(result is not None and result.users for result in results[1:3]):
        return False
    if training:
        t.emit(node, "BatchNorm", inputs, [results[0], *results[3:]], rates)
        return True
    t.emit(node, "BatchNormTest", inputs, results[:1], rates)
    for result, statistic in zip(results[3:], statistics, strict=False):
        if result is not None:
            t.blobs[result] = t.blobs[statistic]
    return True


def _instance_norm(t: Emitter, node: Node) -> bool:
    """Instance norm is one op, unless it changes running statistics in place."""
    if t.argument(node, "running_mean") is not None and t.argument(node, "use_input_stats"):
        expected = "instance norm without running statistics"
        raise t.refused(node, "track_running_stats=True", expected)
    return False


def _copy(t: Emitter, node: Node) -> bool:
    """What `y[...] = x` writes: x in the form of y. The op of that name has no gradient."""
    source, value = t.tensor(node, "src"), value_of(node)
    blob, given = t.blobs[source], value_of(source)
    if given.dtype != value.dtype:
        cast: dict[str, Attribute] = {"dtype": t.dtype_of(node)}
        blob = t.extra(node, "cast", "aten._to_copy", [blob], cast, given.shape)
    if given.shape == value.shape:
        t.blobs[node] = blob
    else:
        t.emit(node, "aten.expand", [blob], [node], {"size": tuple(value.shape)})
    return True


def _stop(t: Emitter, node: Node) -> bool:
    t.emit(node, "StopGradient", [t.blobs[node.all_input_nodes[0]]], [node])
    return True


def _pass(t: Emitter, node: Node) -> bool:
    t.blobs[node] = t.blobs[node.all_input_nodes[0]]
    return True


NORMS: Mapping[str, Callable[[Emitter, Node], bool]] = {
    "aten._native_batch_norm_legit_functional": _batch_norm,
    "aten._native_batch_norm_legit_no_training": _batch_norm,
    "aten.instance_norm": _instance_norm,
}
"""How nodes of normalisation become ops; False leaves them to the general rule."""

COPIES: Mapping[str, Callable[[Emitter, Node], bool]] = {
    "aten.alias": _pass,
    "aten.copy": _copy,
    "aten.detach": _stop,
    "aten.lift_fresh_copy": _pass,
}
"""How nodes that only pass a value on become ops."""
