"""Nested batches as flat, named tensors.

Inputs and outputs of a module may be nested; a graph has blobs. A tensor is named after its path:
`data`, `data/0`, `data/mask`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor

from purine.errors import ConfigError

__all__ = ["LOSS", "MODULE", "OUTPUT", "Batch", "Nested", "batch_of", "leaves_of", "rebuild"]

LOSS, OUTPUT = "loss", "output"
"""The names of results."""
MODULE = "module."
"""The prefix of the user's module in an exported program."""

Nested: TypeAlias = object
"""A tensor, or tuples, lists and mappings of such."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The tensors of an example in the order of a `Data` op, and how the module is called.

    No two tensors share memory: an example may have the same one twice, and data need not.
    """

    names: tuple[str, ...]
    values: tuple[Tensor, ...]
    arguments: tuple[Nested, ...]
    keywords: Mapping[str, Nested]
    targets: tuple[Nested, ...]

    def rebuild(
        self, values: Sequence[Tensor]
    ) -> tuple[list[object], dict[str, object], list[object]]:
        """Arguments, keyword arguments and targets that hold `values`."""
        rest = iter(values)
        arguments = [rebuild(item, rest) for item in self.arguments]
        keywords = {key: rebuild(item, rest) for key, item in self.keywords.items()}
        return arguments, keywords, [rebuild(item, rest) for item in self.targets]


def batch_of(example: Nested, inputs: Sequence[str] | None, targets: Sequence[str]) -> Batch:
    """Split an example into what the module takes and what the loss compares it with."""
    if isinstance(example, Mapping):
        names = [key for key in example if key not in targets] if inputs is None else list(inputs)
        missing = [key for key in (*names, *targets) if key not in example]
        if missing:
            raise ConfigError(
                f"the example has no {', '.join(missing)}",
                expected=f"items {', '.join((*names, *targets))}",
                found=", ".join(map(str, example)) or "no items",
                remedy="name the items of the example in inputs= and targets=",
            )
        items = [example[key] for key in (*names, *targets)]
    else:
        items = list(example) if isinstance(example, tuple | list) else [example]
        names = _input_names(len(items) - len(targets)) if inputs is None else list(inputs)
        if not names or len(items) != len(names) + len(targets):
            raise ConfigError(
                f"the example has {len(items)} items",
                expected=f"inputs {', '.join(names) or '(one or more)'}, then targets "
                f"{', '.join(targets) or '(none)'}",
                found=f"{len(items)} items",
                remedy="pass inputs= and targets= with a name for each item",
            )
    leaves = [
        leaf
        for name, item in zip((*names, *targets), items, strict=True)
        for leaf in leaves_of(item, name)
    ]
    tensors = _checked(leaves)
    # The forms of the items: a module must not hold the example's tensors.
    blank = [_mapped(item, lambda _: None) for item in items]
    given = dict(zip(names, blank, strict=False)) if isinstance(example, Mapping) else {}
    return Batch(
        tuple(name for name, _ in tensors),
        tuple(value.detach().clone() for _, value in tensors),
        () if given else tuple(blank[: len(names)]),
        given,
        tuple(blank[len(names) :]),
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


def rebuild(form: Nested, values: Iterator[Tensor]) -> object:
    """The nested value of the given form that holds `values` in order."""
    return _mapped(form, lambda _: next(values))


def _mapped(value: Nested, function: Callable[[object], object]) -> Nested:
    """A nested value with a function of each item that is no container."""
    if isinstance(value, Mapping):
        return {key: _mapped(item, function) for key, item in value.items()}
    if isinstance(value, tuple | list):
        items = [_mapped(item, function) for item in value]
        return items if isinstance(value, list) else tuple(items)
    return function(value)


def _input_names(count: int) -> list[str]:
    return ["data"] if count == 1 else [f"data{index}" for index in range(count)]


def _checked(leaves: Sequence[tuple[str, object]]) -> list[tuple[str, Tensor]]:
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
    sizes = {name: value.shape[0] for name, value in tensors}
    if len(set(sizes.values())) > 1:
        raise ConfigError(
            "the items of the example differ in batch size",
            expected="the same first dimension for all",
            found=", ".join(f"{name}: {size}" for name, size in sizes.items()),
            remedy="put the batch first in every tensor of the example",
        )
    return tensors
