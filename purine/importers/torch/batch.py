"""Nested batches as flat, named tensors.

Inputs and outputs of a module may be nested; a graph has blobs. A tensor is named after its path:
`data`, `data/0`, `data/mask`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch import Tensor

from purine.errors import ConfigError

__all__ = ["LOSS", "MODULE", "OUTPUT", "Batch", "Nested", "batch_of", "leaves_of", "own_name"]

LOSS, OUTPUT = "loss", "output"
"""The names of results."""
MODULE = "module."
"""The prefix of the user's module in an exported program."""

Nested: TypeAlias = object
"""A tensor, or tuples, lists and mappings of such."""
Call: TypeAlias = tuple[list[Nested], dict[str, Nested], list[Nested]]
"""Arguments and keyword arguments of a module, and the targets of its loss."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The tensors of an example in the order of a `Data` op, and how the module is called.

    No two tensors share memory: an example may have the same one twice, and data need not.
    """

    names: tuple[str, ...]
    values: tuple[Tensor, ...]
    call: Call

    def rebuild(self, values: Sequence[Tensor]) -> Call:
        """The call with `values` for tensors."""
        rest = iter(values)
        call: Call = _mapped(self.call, lambda _: next(rest))
        return call


def own_name(path: str) -> str:
    """The name in the user's module of a part of the module that is exported.

    >>> own_name("module.conv1"), own_name("module"), own_name("loss.weight")
    ('conv1', '', 'loss.weight')
    """
    return path.removeprefix(MODULE[:-1]).removeprefix(".")


def batch_of(example: Nested, inputs: Sequence[str] | None, targets: Sequence[str]) -> Batch:
    """Split an example into what the module takes and what the loss compares it with."""
    if isinstance(example, Mapping):
        names = [key for key in example if key not in targets] if inputs is None else list(inputs)
        missing = [key for key in (*names, *targets) if key not in example]
        if missing:
            what = f"the example has no {', '.join(missing)}"
            found = ", ".join(map(str, example)) or "no items"
            remedy = "name the items of the example in inputs= and targets="
            raise ConfigError(what, f"items {', '.join((*names, *targets))}", found, remedy)
        items = [example[key] for key in (*names, *targets)]
    else:
        items = list(example) if isinstance(example, tuple | list) else [example]
        count = len(items) - len(targets)
        default = ["data"] if count == 1 else [f"data{index}" for index in range(count)]
        names = default if inputs is None else list(inputs)
        if not names or len(items) != len(names) + len(targets):
            what = f"the example has {len(items)} items"
            expected = f"inputs {', '.join(names) or '(one or more)'}, then targets "
            expected += f"{', '.join(targets) or '(none)'}"
            remedy = "pass inputs= and targets= with a name for each item"
            raise ConfigError(what, expected, f"{len(items)} items", remedy)
    named = zip((*names, *targets), items, strict=True)
    tensors = _checked(leaf for name, item in named for leaf in leaves_of(item, name))
    # The forms of the items: a module must not hold the example's tensors.
    blank = [_mapped(item, lambda _: None) for item in items]
    given, rest = blank[: len(names)], blank[len(names) :]
    by_name = isinstance(example, Mapping)
    return Batch(
        tuple(name for name, _ in tensors),
        tuple(value.detach().clone() for _, value in tensors),
        ([], dict(zip(names, given, strict=True)), rest) if by_name else (given, {}, rest),
    )


def leaves_of(value: Nested, name: str) -> Iterator[tuple[str, object]]:
    """The things that a nested value holds, each with its name.

    >>> list(leaves_of((1, {"mask": 2}), "data"))
    [('data/0', 1), ('data/1/mask', 2)]
    """
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from leaves_of(item, f"{name}/{key}")
    elif isinstance(value, tuple | list):
        for index, item in enumerate(value):
            yield from leaves_of(item, f"{name}/{index}")
    else:
        yield name, value


def _mapped(value: Nested, function: Callable[[object], object]) -> Any:
    """A nested value with a function of each item that is no container."""
    if isinstance(value, Mapping):
        return {key: _mapped(item, function) for key, item in value.items()}
    if isinstance(value, tuple | list):
        items = [_mapped(item, function) for item in value]
        return items if isinstance(value, list) else tuple(items)
    return function(value)


def _checked(leaves: Iterable[tuple[str, object]]) -> list[tuple[str, Tensor]]:
    """The named tensors of an example; anything else is refused."""
    tensors: list[tuple[str, Tensor]] = []
    for name, value in leaves:
        if not isinstance(value, Tensor) or value.ndim == 0:
            what = f"item {name!r} of the example cannot be read from data"
            expected = "a tensor whose first dimension is the batch"
            actual = "a scalar tensor" if isinstance(value, Tensor) else type(value).__name__
            remedy = "put settings into the module, and pass tensors with one row per sample"
            raise ConfigError(what, blob=name, expected=expected, found=actual, remedy=remedy)
        tensors.append((name, value))
    if len({value.shape[0] for _, value in tensors}) > 1:
        what = "the items of the example differ in batch size"
        actual = ", ".join(f"{name}: {value.shape[0]}" for name, value in tensors)
        remedy = "put the batch first in every tensor of the example"
        raise ConfigError(what, "the same first dimension for all", actual, remedy)
    return tensors
