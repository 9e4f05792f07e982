"""The one registry of kinds: what an op of a kind computes, takes and may be given.

A kind is a pure function over tensors. Its positional parameters are the op's inputs, its
keyword-only parameters the op's attributes, their annotations the attributes' types. Shapes, cost
and gradients all come from running that function, so a new kind is usually one short function:

    @kind
    def Relu(x: Tensor) -> Tensor:
        return F.relu(x)

Any ATen overload is a kind without being registered (see `registry.aten`), and any kind has a
form whose sizes follow the batch (see `purine.registry.sized`).
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, overload

from torch import Tensor

from purine.arguments import checked, conforms, describe, shown
from purine.errors import ConfigError, KindError, in_a_line
from purine.graph import Attribute, Op
from purine.nearest import nearest_name

if TYPE_CHECKING:
    from purine.analysis.tracing import Inferred, Spec

__all__ = [
    "IMPLIED",
    "REGISTERED",
    "Attr",
    "Kernel",
    "Kind",
    "Results",
    "generation",
    "kind",
    "register",
]

Results: TypeAlias = Tensor | tuple[Tensor, ...]
Kernel: TypeAlias = Callable[..., Results]
F = TypeVar("F", bound=Callable[..., Any])

IMPLIED = ("seed", "iteration")
"""Inputs by these names need not be written: the blobs of the same names are meant."""

_UNSET = object()


@dataclass(frozen=True, slots=True)
class Attr:
    """An attribute that a kind takes: the annotation of its type, and its default if it has one."""

    annotation: Any
    default: object = _UNSET

    @property
    def required(self) -> bool:
        return self.default is _UNSET


@dataclass(frozen=True, slots=True)
class Kind:
    """What is known of a kind of op.

    `evaluation` names what an op of this kind becomes at test time: a kind that takes its place, or
    "pass" where the first input simply takes the place of the first output.
    `view` says that the result may share memory with the first input.
    `overwrite` is a variant of `function` that writes result k over input `over[k]`.
    `many` is a variant for several ops that differ in their tensors alone: it takes for each input
    the list of what the ops have there, and gives for each result a list. It overwrites too; `each`
    is the same without overwriting, and made of calls that a compiler can take together.
    `function` is None for sources, whose kernel is made for the run (`Data`).
    `binder` makes the kernel of an op where attributes are not simply keyword arguments;
    `overwriter` and `overwritten` stand for `overwrite` and `over` of such an op.
    `inferrer` tells what the results are, where that is not found by running the kernel.
    """

    name: str
    function: Kernel | None
    inputs: tuple[str, ...]
    optional: int = 0
    variadic: bool = False
    attributes: Mapping[str, Attr] = field(default_factory=dict)
    evaluation: str | None = None
    loss: bool = False
    view: bool = False
    overwrite: Kernel | None = None
    over: tuple[int, ...] = ()
    many: Callable[..., Sequence[Sequence[Tensor]]] | None = None
    each: Callable[..., Sequence[Sequence[Tensor]]] | None = None
    binder: Callable[[Op], Kernel] | None = None
    overwriter: Callable[[Op], Kernel] | None = None
    overwritten: Callable[[Op], tuple[int, ...]] | None = None
    inferrer: Callable[[Op, Sequence[Spec]], Inferred] | None = None

    def bind(self, op: Op) -> Kernel:
        """The function of tensors alone that `op` stands for."""
        if self.binder is not None:
            return self.binder(op)
        assert self.function is not None, f"{self.name} has no function of its own"
        return partial(self.function, **self._settings(op))

    def bind_overwrite(self, op: Op) -> Kernel:
        """As `bind`, for the variant that writes over its inputs."""
        if self.overwriter is not None:
            return self.overwriter(op)
        assert self.overwrite is not None
        return partial(self.overwrite, **self._settings(op))

    def overwrites(self, op: Op) -> tuple[int, ...]:
        """The inputs that the variant of `bind_overwrite` writes over."""
        return self.over if self.overwritten is None else self.overwritten(op)

    def bind_many(self, op: Op) -> Callable[..., Sequence[Sequence[Tensor]]]:
        """As `bind_overwrite`, for several ops with the attributes of this one."""
        assert self.many is not None
        return partial(self.many, **self._settings(op))

    def bind_each(self, op: Op) -> Callable[..., Sequence[Sequence[Tensor]]]:
        """As `bind_many`, for the variant that does not write over its inputs."""
        assert self.each is not None
        return partial(self.each, **self._settings(op))

    def _settings(self, op: Op) -> dict[str, Attribute]:
        return {
            key: value
            for key, value in op.attributes.items()
            if not (self.loss and key == "loss_weight")
        }

    def problems(self, op: Op) -> Iterator[KindError]:
        """What is wrong with the number of inputs and the attributes of `op`."""
        yield from _input_problems(self, op)
        for key, value in op.attributes.items():
            attr = self.attributes.get(key)
            if attr is None:
                yield _unknown_attribute(self, op, key)
            elif not conforms(value, attr.annotation):
                yield KindError(
                    f"op {op.name!r} ({op.kind}) at {op.location} has attribute {key} = {value!r}",
                    where=op.where,
                    op=op.name,
                    location=str(op.location),
                    expected=f"{key} to be {describe(attr.annotation)}",
                    found=f"{type(value).__name__} {value!r}",
                    remedy=f"change {key} of op {op.name!r}",
                )
        for key, attr in self.attributes.items():
            if attr.required and key not in op.attributes:
                yield KindError(
                    f"op {op.name!r} ({op.kind}) at {op.location} has no attribute {key}",
                    where=op.where,
                    op=op.name,
                    location=str(op.location),
                    expected=f"{key}, which is {describe(attr.annotation)}",
                    found=", ".join(op.attributes) or "no attributes",
                    remedy=f"add {key} to op {op.name!r}",
                )


REGISTERED: dict[str, Kind] = {}
"""The kinds that have a name, as far as their modules are imported; see `lookup.kinds`."""
_generation = 0


def register(kind: Kind) -> Kind:
    """Add a kind to the registry."""
    first = REGISTERED.get(kind.name)
    if first is not None and not _redefines(kind, first):
        raise ConfigError(
            f"there is a kind {kind.name!r} already",
            expected="a name that no other kind has",
            found=f"{kind.name!r} of {getattr(first.function, '__module__', 'purine')}",
            remedy="rename the function",
        )
    if first is not None:
        global _generation
        _generation += 1
    REGISTERED[kind.name] = kind
    return kind


def generation() -> int:
    """How many times a kind was redefined: what was found by running a kind holds for one."""
    return _generation


def _redefines(kind: Kind, first: Kind) -> bool:
    """Whether a function was defined again where it was before, as when a notebook cell is rerun.

    Functions of modules are defined once, unless the module is reloaded.
    """
    return (
        kind.function is not None
        and first.function is not None
        and not kind.function.__module__.startswith("purine.")
        and (kind.function.__module__, kind.function.__qualname__)
        == (first.function.__module__, first.function.__qualname__)
    )


@overload
def kind(function: F) -> F: ...


@overload
def kind(
    *,
    evaluation: str | None = None,
    loss: bool = False,
    view: bool = False,
    overwrite: Kernel | None = None,
    over: Sequence[int] = (),
    many: Callable[..., Sequence[Sequence[Tensor]]] | None = None,
    each: Callable[..., Sequence[Sequence[Tensor]]] | None = None,
) -> Callable[[F], F]: ...


@checked
def kind(
    function: Kernel | None = None,
    *,
    evaluation: str | None = None,
    loss: bool = False,
    view: bool = False,
    overwrite: Kernel | None = None,
    over: Sequence[int] = (),
    many: Callable[..., Sequence[Sequence[Tensor]]] | None = None,
    each: Callable[..., Sequence[Sequence[Tensor]]] | None = None,
) -> Any:
    """Register a function as the kind of its own name; see `Kind` for the options.

    A function that is defined again under its name in its module, as in a notebook, takes the place
    of the first; graphs then mean the new one.
    """

    def add(function: Kernel) -> Kernel:
        made = _from_signature(function)
        attributes = dict(made.attributes)
        if loss:
            attributes["loss_weight"] = Attr(float, 1.0)
        register(
            replace(
                made,
                attributes=attributes,
                evaluation=evaluation,
                loss=loss,
                view=view,
                overwrite=overwrite,
                over=tuple(over),
                many=many,
                each=each,
            )
        )
        return function

    return add if function is None else add(function)


def _from_signature(function: Kernel) -> Kind:
    if not inspect.isfunction(function) or not function.__name__.isidentifier():
        raise ConfigError(
            f"{shown(function)} cannot be a kind",
            expected="a function of tensors that has a name",
            found=getattr(function, "__name__", shown(function)),
            remedy="define it with def, with the decorator @kind above",
        )
    try:
        hints = typing.get_type_hints(function)
    except Exception as error:
        raise _unusable(function, in_a_line(error), "annotations that can be read") from error
    inputs: list[str] = []
    optional, variadic = 0, False
    attributes: dict[str, Attr] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            if name not in hints:
                raise _unusable(function, f"{name} without one", "an annotation for each attribute")
            default = parameter.default
            unset = default is inspect.Parameter.empty
            attributes[name] = Attr(hints[name], _UNSET if unset else default)
        elif parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            variadic = True
        elif parameter.kind is inspect.Parameter.VAR_KEYWORD:
            raise _unusable(function, f"**{name}", "attributes that are named")
        else:
            inputs.append(name)
            optional += parameter.default is not inspect.Parameter.empty
    name = function.__name__
    return Kind(name, function, tuple(inputs), optional, variadic, attributes)


def _unusable(function: Kernel, found: str, expected: str) -> ConfigError:
    return ConfigError(
        f"the signature of kind {function.__name__!r} cannot be used",
        expected=f"{expected}, such as `def Swish(x: Tensor, *, beta: float = 1.0) -> Tensor`",
        found=found,
        remedy="annotate inputs with Tensor and attributes, behind the *, with their types",
    )


def _input_problems(kind: Kind, op: Op) -> Iterator[KindError]:
    given, most = len(op.inputs), len(kind.inputs)
    least = most - kind.optional
    if given < least or (given > most and not kind.variadic):
        names = ", ".join(kind.inputs) + (", ..." if kind.variadic else "")
        count = f"{least}" if least == most else f"{least} to {most}"
        if kind.variadic:
            count = f"{least} or more"
        yield KindError(
            f"op {op.name!r} ({op.kind}) at {op.location} has {given} inputs",
            where=op.where,
            op=op.name,
            location=str(op.location),
            expected=f"{count} ({names})" if names else count,
            found=", ".join(op.inputs) or "none",
            remedy=f"change the inputs of op {op.name!r}",
        )


def _unknown_attribute(kind: Kind, op: Op, key: str) -> KindError:
    known = ", ".join(kind.attributes) or "none"
    return KindError(
        f"op {op.name!r} ({op.kind}) at {op.location} has unknown attribute {key!r}",
        where=op.where,
        op=op.name,
        location=str(op.location),
        expected=f"attributes of {op.kind}: {known}",
        found=f"{key} = {op.attributes[key]!r}",
        remedy=nearest_name(key, kind.attributes, f"remove {key!r}", cutoff=0.5),
    )
