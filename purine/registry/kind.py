"""The registry of kinds.

A kind is a pure function of tensors. Its positional parameters are the inputs of an op, its
keyword-only parameters the attributes. Shapes, cost and gradients come from running that function,
so a new kind is usually one short function:

    @kind
    def Relu(x: Tensor) -> Tensor:
        return F.relu(x)

Every ATen overload is a kind too (`registry.aten`), and every kind has a form whose sizes follow
the batch (`registry.sized`).
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, wraps
from typing import Any, TypeAlias, TypeVar, overload

import torch
from torch import Tensor

from purine.arguments import checked, conforms, describe, shown
from purine.errors import ConfigError, KindError, in_a_line
from purine.graph import Attribute, Op
from purine.nearest import nearest_name
from purine.registry.facts import UNKNOWN, Facts
from purine.registry.spec import Inferred, Settings, Spec

__all__ = [
    "IMPLIED",
    "REGISTERED",
    "Attr",
    "Kernel",
    "Kind",
    "Many",
    "PerOp",
    "Results",
    "Variants",
    "generation",
    "kind",
    "op_error",
    "opaque",
    "register",
    "signature_of",
]

Results: TypeAlias = Tensor | tuple[Tensor, ...]
Kernel: TypeAlias = Callable[..., Results]
Many: TypeAlias = Callable[..., Sequence[Sequence[Tensor]]]
F = TypeVar("F", bound=Callable[..., Any])

IMPLIED = ("seed", "iteration")
"""Inputs that an op need not list: they are the blobs of the same names."""

_UNSET = object()


@dataclass(frozen=True, slots=True)
class Attr:
    """An attribute that a kind takes: the annotation of its type, and its default if it has one."""

    annotation: object
    default: object = _UNSET

    @property
    def required(self) -> bool:
        return self.default is _UNSET


@dataclass(frozen=True, slots=True)
class Variants:
    """Other ways to compute what the function of a kind computes.

    `in_place` writes result k over input `over[k]`. `many` (in place) and `each` (pure, for a
    compiler) run several ops that differ in their tensors alone, on a list for each input.
    """

    in_place: Kernel | None = None
    over: tuple[int, ...] = ()
    many: Many | None = None
    each: Many | None = None


@dataclass(frozen=True, slots=True)
class PerOp:
    """Replaces the function and the in-place variant where these depend on the op itself.

    `infer` tells the results of an op where running the kernel on fake tensors does not.
    """

    bind: Callable[[Op], Kernel] | None = None
    bind_in_place: Callable[[Op], Kernel] | None = None
    overwrites: Callable[[Op], tuple[int, ...]] | None = None
    infer: Callable[[Op, Sequence[Spec]], Inferred] | None = None


NO_VARIANTS = Variants()
SAME_FOR_ALL = PerOp()


@dataclass(frozen=True, slots=True)
class Kind:
    """What an op of a kind computes, takes and may be given.

    `function` is None where the runtime makes the kernel, as for `Data`. The last `optional` of the
    `inputs` may be left out; with `variadic` more inputs may follow. `evaluation` names the kind at
    test time, or is "pass" if the first output is then the first input. `loss` marks losses, which
    have a `loss_weight`. `view` says that the result may share memory with the first input.
    """

    name: str
    function: Callable[..., Any] | None
    inputs: tuple[str, ...]
    optional: int = 0
    variadic: bool = False
    attributes: Mapping[str, Attr] = field(default_factory=dict)
    evaluation: str | None = None
    loss: bool = False
    view: bool = False
    facts: Facts = UNKNOWN
    variants: Variants = NO_VARIANTS
    per_op: PerOp = SAME_FOR_ALL

    def bind(self, op: Op) -> Kernel:
        """The function of tensors alone that `op` stands for."""
        if self.per_op.bind is not None:
            return self.per_op.bind(op)
        assert self.function is not None, f"{self.name} has no function of its own"
        return partial(self.function, **self._settings(op))

    def bind_overwrite(self, op: Op) -> Kernel:
        """As `bind`, for the variant that writes over its inputs."""
        if self.per_op.bind_in_place is not None:
            return self.per_op.bind_in_place(op)
        assert self.variants.in_place is not None
        return partial(self.variants.in_place, **self._settings(op))

    def overwrites(self, op: Op) -> tuple[int, ...]:
        """The inputs that the variant of `bind_overwrite` writes over."""
        return self.variants.over if self.per_op.overwrites is None else self.per_op.overwrites(op)

    def bind_many(self, op: Op, *, in_place: bool = True) -> Many:
        """As `bind_overwrite`, or as `bind`, for several ops with the attributes of this one."""
        many = self.variants.many if in_place else self.variants.each
        assert many is not None
        return partial(many, **self._settings(op))

    def _settings(self, op: Op) -> dict[str, Attribute]:
        weight = "loss_weight" if self.loss else None
        return {key: value for key, value in op.attributes.items() if key != weight}

    def settings(self, op: Op) -> Settings:
        """The attributes of `op`, with the defaults of those that it leaves out."""
        attributes = self.attributes.items()
        return {key: a.default for key, a in attributes if not a.required} | dict(op.attributes)

    def problems(self, op: Op) -> Iterator[KindError]:
        """What is wrong with the number of inputs and the attributes of `op`."""
        yield from _input_problems(self, op)
        for key, value in op.attributes.items():
            attr = self.attributes.get(key)
            if attr is None:
                expected = f"attributes of {op.kind}: {', '.join(self.attributes) or 'none'}"
                remedy = nearest_name(key, self.attributes, f"remove {key!r}", cutoff=0.5)
                what = f"has unknown attribute {key!r}"
                yield op_error(op, what, expected, f"{key} = {value!r}", remedy)
            elif not conforms(value, attr.annotation):
                what, remedy = f"has attribute {key} = {value!r}", f"change {key} of op {op.name!r}"
                given = f"{type(value).__name__} {value!r}"
                yield op_error(op, what, f"{key} to be {describe(attr.annotation)}", given, remedy)
        for key, attr in self.attributes.items():
            if attr.required and key not in op.attributes:
                expected = f"{key}, which is {describe(attr.annotation)}"
                given = ", ".join(op.attributes) or "no attributes"
                remedy = f"add {key} to op {op.name!r}"
                yield op_error(op, f"has no attribute {key}", expected, given, remedy)


REGISTERED: dict[str, Kind] = {}
"""The named kinds of the modules that are imported so far; see `lookup.kinds`."""
_generation = 0


def register(kind: Kind) -> Kind:
    """Add a kind to the registry."""
    first = REGISTERED.get(kind.name)
    if first is not None and not _redefines(kind, first):
        what = f"there is a kind {kind.name!r} already"
        found = f"{kind.name!r} of {getattr(first.function, '__module__', 'purine')}"
        raise ConfigError(what, "a name that no other kind has", found, "rename the function")
    if first is not None:
        global _generation
        _generation += 1
    REGISTERED[kind.name] = kind
    return kind


def generation() -> int:
    """How many times a kind was redefined; results of tracing are cached per generation."""
    return _generation


def _redefines(kind: Kind, first: Kind) -> bool:
    """Whether a function is defined again in its module, as when a notebook cell is rerun."""
    one, other = kind.function, first.function
    if one is None or other is None or one.__module__.startswith("purine."):
        return False
    return (one.__module__, one.__qualname__) == (other.__module__, other.__qualname__)


@overload
def kind(function: F) -> F: ...


@overload
def kind(
    *,
    evaluation: str | None = None,
    loss: bool = False,
    view: bool = False,
    facts: Facts = UNKNOWN,
    variants: Variants = NO_VARIANTS,
) -> Callable[[F], F]: ...


@checked
def kind(
    function: Kernel | None = None,
    *,
    evaluation: str | None = None,
    loss: bool = False,
    view: bool = False,
    facts: Facts = UNKNOWN,
    variants: Variants = NO_VARIANTS,
) -> Any:
    """Register a function as the kind of its own name; see `Kind` for the options.

    A function that is defined again, as in a notebook, replaces the first.
    """

    def add(function: Kernel) -> Kernel:
        inputs, optional, variadic, attributes = signature_of(function)
        if loss:
            attributes["loss_weight"] = Attr(float, 1.0)
        arguments = (function.__name__, function, inputs, optional, variadic, attributes)
        register(Kind(*arguments, evaluation, loss, view, facts, variants))
        return function

    return add if function is None else add(function)


def opaque(fake: Callable[..., Tensor]) -> Callable[[F], F]:
    """Make a function the operator `purine::NAME` of torch, which no trace looks into.

    `fake` gives for the same arguments an empty tensor like the result.
    """

    def declare(function: F) -> F:
        name = f"purine::{function.__name__}"
        operator = torch.library.custom_op(name, function, mutates_args=())
        operator.register_fake(fake)

        @wraps(function)
        def call(*inputs: Tensor, **settings: Attribute) -> object:
            return operator(*inputs, **settings)

        return typing.cast(F, call)

    return declare


def signature_of(function: Kernel) -> tuple[tuple[str, ...], int, bool, dict[str, Attr]]:
    """The inputs, how many of them are optional, whether more may follow, and the attributes."""
    if not inspect.isfunction(function) or not function.__name__.isidentifier():
        what = f"{shown(function)} cannot be a kind"
        found = getattr(function, "__name__", shown(function))
        remedy = "define it with def, with the decorator @kind above"
        raise ConfigError(what, "a function of tensors that has a name", found, remedy)
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
    return tuple(inputs), optional, variadic, attributes


def _unusable(function: Kernel, found: str, expected: str) -> ConfigError:
    what = f"the signature of kind {function.__name__!r} cannot be used"
    expected += ", such as `def Swish(x: Tensor, *, beta: float = 1.0) -> Tensor`"
    remedy = "annotate inputs with Tensor and attributes, behind the *, with their types"
    return ConfigError(what, expected, found, remedy)


def _input_problems(kind: Kind, op: Op) -> Iterator[KindError]:
    given, most = len(op.inputs), len(kind.inputs)
    least = most - kind.optional
    if given < least or (given > most and not kind.variadic):
        names = ", ".join(kind.inputs) + (", ..." if kind.variadic else "")
        count = f"{least}" if least == most else f"{least} to {most}"
        if kind.variadic:
            count = f"{least} or more"
        expected = f"{count} ({names})" if names else count
        found, remedy = ", ".join(op.inputs) or "none", f"change the inputs of op {op.name!r}"
        yield op_error(op, f"has {given} inputs", expected, found, remedy)


def op_error(
    op: Op, what: str, expected: str, found: str, remedy: str, *, blob: str | None = None
) -> KindError:
    """The error for an op, whose name, kind and location stand before `what`."""
    what = f"op {op.name!r} ({op.kind}) at {op.location} {what}"
    return KindError(what, op=op, blob=blob, expected=expected, found=found, remedy=remedy)
