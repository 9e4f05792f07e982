"""Kinds that join, cut and rearrange blobs without changing a value."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from purine.analysis.shapes import checked_axis
from purine.arguments import at_least, checked
from purine.graph import Filler
from purine.kinds.net import Var
from purine.registry.facts import Facts, Precision, Role, SampleRule, ShardRule
from purine.registry.kind import kind

__all__ = ["concat", "flatten", "prepend", "reshape", "slice", "split", "transpose"]


@kind(facts=Facts(Precision.FOLLOW, ShardRule.CONCAT, SampleRule.ALONG_AXIS, Role.CONCATENATION))
def Concat(x: Tensor, *more: Tensor, axis: int = 1) -> Tensor:
    """The inputs one after the other along `axis`."""
    return torch.cat([x, *more], axis)


@kind(facts=Facts(Precision.FOLLOW, samples=SampleRule.ROWS))
def Prepend(x: Tensor, rows: Tensor) -> Tensor:
    """The same rows [K, C] before those of every sample of x [N, T, C]."""
    if x.ndim != 3 or rows.ndim != 2 or x.shape[2] != rows.shape[1]:
        raise ValueError(f"rows {list(rows.shape)} cannot stand before those of {list(x.shape)}")
    return torch.cat([rows.expand(x.shape[0], -1, -1), x], 1)


@kind(view=True, facts=Facts(Precision.FOLLOW, ShardRule.SPLIT, SampleRule.ALONG_AXIS))
def Split(x: Tensor, *, parts: int, axis: int = 1) -> tuple[Tensor, ...]:
    """`parts` equal pieces of x along `axis`, each a result."""
    extent = x.shape[checked_axis(x, axis)]
    if parts < 1 or extent % parts:
        raise ValueError(f"{extent} along axis {axis} cannot be cut into {parts} equal parts")
    return tuple(torch.split(x, extent // parts, axis))


@kind(view=True, facts=Facts(Precision.FOLLOW, ShardRule.ALONG_AXIS, SampleRule.ALONG_AXIS))
def Slice(x: Tensor, *, axis: int = 1, start: int = 0, end: int | None = None) -> Tensor:
    """The part of x from `start` up to `end` (left out: to the end) along `axis`."""
    extent = x.shape[checked_axis(x, axis)]
    stop = extent if end is None else end
    if not 0 <= start < stop <= extent:
        raise ValueError(f"{start} to {stop} is no part of 0 to {extent} along axis {axis}")
    return x.narrow(axis, start, stop - start)


@kind(view=True, facts=Facts(Precision.FOLLOW, ShardRule.RESHAPE, SampleRule.ROWS))
def Flatten(x: Tensor, *, axis: int = 1, end: int = -1) -> Tensor:
    """x with its dimensions from `axis` to `end`, inclusive, made one."""
    return x.flatten(axis, end)


@kind(view=True, facts=Facts(Precision.FOLLOW, ShardRule.RESHAPE, SampleRule.RESHAPE_ROWS))
def Reshape(x: Tensor, *, shape: tuple[int, ...]) -> Tensor:
    """x with another shape: -1 stands for what is left, 0 for the same dimension of x."""
    for dim, extent in enumerate(shape):
        if extent == 0 and dim >= x.ndim:
            raise ValueError(f"shape has 0 at place {dim}, but x has {x.ndim} dimensions")
    return x.reshape([extent or x.shape[dim] for dim, extent in enumerate(shape)])


@kind(view=True, facts=Facts(Precision.FOLLOW, ShardRule.TRANSPOSE, SampleRule.PERMUTE))
def Transpose(x: Tensor, *, axes: tuple[int, ...]) -> Tensor:
    """x with its dimensions in another order: dimension k of the result is `axes[k]` of x."""
    return x.permute(axes)


@checked
def concat(inputs: Sequence[Var], *, axis: int = 1, name: str | None = None) -> Var:
    """The inputs joined along `axis`."""
    at_least("the number of inputs", len(inputs), 1)
    return inputs[0].net.apply("Concat", inputs, {"axis": axis}, name=name)


@checked
def prepend(x: Var, count: int, *, name: str | None = None) -> Var:
    """`count` learnt rows before those of every sample of [N, T, C].

    >>> from purine.kinds import Net
    >>> prepend(Net().input("x", (2, 5, 8)), 1, name="token").shape
    (2, 6, 8)
    """
    name = x.net.builder.fresh(name or "prepend")
    rows = x.net.parameter(f"{name}/weight", (count, x.extent(2)), Filler())
    return x.net.apply("Prepend", [x, rows], name=name)


@checked
def split(x: Var, parts: int, *, axis: int = 1, name: str | None = None) -> tuple[Var, ...]:
    """Equal pieces of x along `axis`.

    >>> from purine.kinds import Net
    >>> [piece.name for piece in split(Net().input("x", (2, 6)), 3, name="qkv")]
    ['qkv/0', 'qkv/1', 'qkv/2']
    """
    labels = [str(part) for part in range(parts)]
    return x.net.apply_many("Split", [x], {"parts": parts, "axis": axis}, name=name, labels=labels)


@checked
def slice(
    x: Var, start: int, end: int | None = None, *, axis: int = 1, name: str | None = None
) -> Var:
    """A part of x along `axis`."""
    return x.net.apply("Slice", [x], {"axis": axis, "start": start, "end": end}, name=name)


@checked
def flatten(x: Var, *, axis: int = 1, end: int = -1, name: str | None = None) -> Var:
    """x with several dimensions made one."""
    return x.net.apply("Flatten", [x], {"axis": axis, "end": end}, name=name)


@checked
def reshape(x: Var, shape: Sequence[int], *, name: str | None = None) -> Var:
    """x with another shape; -1 stands for what is left, 0 for the same dimension of x."""
    return x.net.apply("Reshape", [x], {"shape": tuple(shape)}, name=name)


@checked
def transpose(x: Var, axes: Sequence[int], *, name: str | None = None) -> Var:
    """x with its dimensions in another order."""
    return x.net.apply("Transpose", [x], {"axes": tuple(axes)}, name=name)
