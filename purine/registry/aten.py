"""ATen overloads as kinds: how an op's inputs and attributes become the arguments of a call.

An op of kind `aten.addmm` lists its tensor arguments as inputs, in the order of the overload's
schema, and everything else as attributes by the schema's names. A tensor argument that is absent
is an attribute that holds null. Inside a list, the text `$k` stands for input k:

    {op_type: aten.index.Tensor, inputs: [x, rows], indices: [null, $1]}

Arguments that say where a result is created come from the op's location, never from attributes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch._C import Argument
from torch._ops import OpOverload

from purine.graph import Attribute, Location, Op
from purine.registry.aten_facts import OVERWRITES, facts_of
from purine.registry.kind import Attr, Kernel, Kind, PerOp, Results

__all__ = [
    "KERNELS",
    "OVERWRITES",
    "Input",
    "Inputs",
    "attributes_of",
    "bind_over",
    "canonical",
    "device_of",
    "dtype_name",
    "dtype_of",
    "kind_of",
    "name_of",
    "written_over",
]

_MORE = ("mkldnn._convolution_pointwise",)
"""Overloads of another namespace than aten."""
_PLACED = ("device", "layout", "pin_memory")
_FORMATS = {
    "contiguous": torch.contiguous_format,
    "channels_last": torch.channels_last,
    "preserve": torch.preserve_format,
}

KERNELS: dict[tuple[str, str], Kernel] = {}
"""Our kernels by overload and type of device: where ATen has none, or one that is not deterministic
or does not take all inputs."""


@cache
def device_of(location: Location) -> torch.device:
    """torch's device for a location: every `cpu:k`, a set of cores, is torch's cpu.

    GPUs with numbers beyond those of the machine share its GPUs; a run must be asked to do that.
    """
    kind, _, number = location.device.partition(":")
    if kind == "cpu":
        return torch.device("cpu")
    count = torch.cuda.device_count()
    return torch.device(kind, int(number) % count if count else int(number))


def dtype_of(name: str) -> torch.dtype:
    """torch's dtype for a blob's dtype name."""
    dtype = getattr(torch, name, None)
    assert isinstance(dtype, torch.dtype), name
    return dtype


def dtype_name(dtype: torch.dtype) -> str:
    """A blob's name for one of torch's dtypes."""
    return str(dtype).removeprefix("torch.")


@cache
def kind_of(name: str) -> Kind | None:
    """The kind called `aten.NAME` or `aten.NAME.OVERLOAD`, or None where ATen has none."""
    overload = _overload(name)
    if overload is None:
        return None
    schema = overload._schema
    tensors = [a for a in schema.arguments if _is_tensor(a)]
    lists = [a for a in schema.arguments if _is_tensor_list(a)]
    attributes = {}
    for argument in schema.arguments:
        if argument.name in _PLACED:
            continue
        required = not argument.has_default_value() and argument not in tensors + lists
        default = argument.default_value if argument.has_default_value() else None
        attributes[argument.name] = Attr(Any) if required else Attr(Any, default)
    return Kind(
        name=name,
        function=overload,
        inputs=tuple(a.name for a in tensors),
        optional=len(tensors),
        variadic=bool(lists),
        attributes=attributes,
        per_op=PerOp(bind=lambda op: _bind(overload, op)),
        facts=facts_of(canonical(name)),
        view=any(r.alias_info is not None for r in schema.returns),
    )


def bind_over(op: Op, index: int) -> Kernel:
    """The kernel of an elementwise ATen op, with its result written over input `index`."""
    assert index in OVERWRITES[op.kind], op
    # Some `out` overloads compute elsewhere first and then copy, so in-place ones are preferred.
    in_place = _in_place(op.kind) if index == 0 else None
    if in_place is not None:
        return _bind(in_place, op)
    name = op.kind.split(".")[1]
    out = "grad_input" if name.endswith("_backward") else "out"
    call = _bind(getattr(getattr(torch.ops.aten, name), out), op, out=out)

    def over(*tensors: torch.Tensor) -> Results:
        return call(*tensors, **{out: tensors[index]})

    return over


def canonical(name: str) -> str:
    """The spelling of a kind that graphs and tables use: an overload `default` is left out.

    >>> canonical("aten.relu.default"), canonical("aten.add.Tensor"), canonical("Relu")
    ('aten.relu', 'aten.add.Tensor', 'Relu')
    """
    return name.removesuffix(".default")


def name_of(overload: OpOverload) -> str:
    """The kind of an overload, in its canonical spelling."""
    namespace, _, name = overload._schema.name.partition("::")
    return canonical(f"{namespace}.{name}.{overload._overloadname}")


def attributes_of(
    overload: OpOverload,
    args: Sequence[object],
    kwargs: Mapping[str, object],
    number: Callable[[object], int | None],
) -> tuple[list[int], dict[str, Attribute]]:
    """The inputs and attributes of a recorded call; `number` gives a tensor's value number."""
    inputs: list[int] = []
    attributes: dict[str, Attribute] = {}
    arguments = overload._schema.arguments
    given = dict(zip((a.name for a in arguments), args, strict=False)) | dict(kwargs)
    for argument in arguments:
        if argument.name in _PLACED or argument.name not in given:
            continue
        value = given[argument.name]
        own = number(value)
        if own is not None:
            inputs.append(own)
        elif _is_tensor_list(argument) and isinstance(value, list | tuple):
            numbers = [number(item) for item in value]
            if None in numbers or sum(map(_is_tensor_list, arguments)) > 1:
                attributes[argument.name] = _placeholders(numbers, len(inputs))
            inputs += [item for item in numbers if item is not None]
        elif not argument.has_default_value() or value != argument.default_value:
            attributes[argument.name] = _encode(value)
        elif _is_tensor(argument):
            attributes[argument.name] = None
    return inputs, attributes


def _overload(name: str) -> OpOverload | None:
    parts = name.split(".")
    if not (parts[0] == "aten" or name in _MORE) or not 2 <= len(parts) <= 3:
        return None
    packet = getattr(getattr(torch.ops, parts[0]), parts[1], None)
    wanted = parts[2] if len(parts) == 3 else "default"
    if packet is None or not hasattr(packet, "overloads") or wanted not in packet.overloads():
        return None
    overload: OpOverload = getattr(packet, wanted)
    return overload


def _in_place(kind: str) -> OpOverload | None:
    _, name, *overload = kind.split(".")
    return _overload(".".join(["aten", f"{name}_", *overload]))


@dataclass(frozen=True, slots=True)
class Input:
    """Stands for one of the op's inputs in the arguments of a call."""

    place: int


@dataclass(frozen=True, slots=True)
class Inputs:
    """Stands for a list of the op's inputs in the arguments of a call; None for an absent one."""

    places: tuple[int | None, ...]


def written_over(op: Op, index: int | None) -> tuple[OpOverload, list[tuple[int, object]]]:
    """The overload that an op calls, in place if `index` is 0, and its arguments.

    Arguments are pairs (position in the schema, value).
    """
    overload = (_in_place(op.kind) if index == 0 else None) or _overload(op.kind)
    assert overload is not None, op
    return overload, _arguments(overload, op)


def _arguments(overload: OpOverload, op: Op, *, out: str | None = None) -> list[tuple[int, object]]:
    """The arguments of a call of `overload` for an op, without the one called `out`."""
    values: list[tuple[int, object]] = []
    used = 0
    schema = overload._schema.arguments
    arguments = [a for a in schema if a.name != out]
    single = [a for a in arguments if _is_tensor(a) and a.name not in op.attributes]
    for number, argument in enumerate(schema):
        name = argument.name
        if name == out:
            continue
        value: object = _argument(argument, op)
        if _is_tensor_list(argument):
            if name in op.attributes:
                indices = _indices(op.attributes[name])
            else:
                after = len([a for a in single if arguments.index(a) > arguments.index(argument)])
                indices = tuple(range(used, len(op.inputs) - after))
            used += sum(index is not None for index in indices)
            value = Inputs(indices)
        elif _is_tensor(argument) and name not in op.attributes and used < len(op.inputs):
            value = Input(used)
            used += 1
        values.append((number, value))
    return values


def _bind(overload: OpOverload, op: Op, *, out: str | None = None) -> Kernel:
    positional: list[object] = []
    keywords: dict[str, object] = {}
    named: list[tuple[str, int]] = []
    for number, value in _arguments(overload, op, out=out):
        argument = overload._schema.arguments[number]
        if not argument.kwarg_only:
            positional.append(value)
        elif isinstance(value, Input):
            named.append((argument.name, value.place))
        elif argument.name in (*op.attributes, *_PLACED) or not argument.has_default_value():
            keywords[argument.name] = value
    slots = [(k, item.place) for k, item in enumerate(positional) if isinstance(item, Input)]
    lists = [(k, item.places) for k, item in enumerate(positional) if isinstance(item, Inputs)]
    function: Kernel = KERNELS.get((name_of(overload), device_of(op.location).type), overload)
    if not lists and not named and all(position == index for position, index in slots):
        rest = tuple(positional[len(slots) :])

        def direct(*tensors: torch.Tensor, **more: torch.Tensor) -> Results:
            return function(*tensors, *rest, **keywords, **more)

        return direct

    def call(*tensors: torch.Tensor, **more: torch.Tensor) -> Results:
        filled = positional.copy()
        for position, index in slots:
            filled[position] = tensors[index]
        for position, indices in lists:
            filled[position] = [None if i is None else tensors[i] for i in indices]
        given = {name: tensors[index] for name, index in named}
        return function(*filled, **keywords, **given, **more)

    return call


def _argument(argument: Argument, op: Op) -> object:
    if argument.name == "device":
        return device_of(op.location)
    if argument.name not in op.attributes:
        return argument.default_value if argument.has_default_value() else None
    value, real = op.attributes[argument.name], str(argument.real_type)
    if "ScalarType" in real and isinstance(value, str):
        return dtype_of(value)
    if "MemoryFormat" in real and isinstance(value, str):
        return _FORMATS[value]
    return list(value) if isinstance(value, tuple) else value


def _encode(value: object) -> Attribute:
    if isinstance(value, torch.dtype):
        return dtype_name(value)
    if isinstance(value, torch.memory_format):
        return next(name for name, known in _FORMATS.items() if known == value)
    if isinstance(value, list | tuple):
        return tuple(_encode(item) for item in value)
    assert value is None or isinstance(value, bool | int | float | str), value
    return value


def _placeholders(numbers: Sequence[int | None], start: int) -> tuple[Attribute, ...]:
    texts: list[Attribute] = []
    for number in numbers:
        texts.append(None if number is None else f"${start}")
        start += number is not None
    return tuple(texts)


def _indices(value: Attribute) -> tuple[int | None, ...]:
    assert isinstance(value, tuple)
    return tuple(None if item is None else int(str(item).removeprefix("$")) for item in value)


def _is_tensor(argument: Argument) -> bool:
    return str(argument.type) in ("Tensor", "Optional[Tensor]")


def _is_tensor_list(argument: Argument) -> bool:
    return "List[" in str(argument.type) and "Tensor]" in str(argument.type)
