"""Several ATen ops as one call that does not need the interpreter.

A sequence of ops becomes a function in TorchScript's intermediate representation, which runs the
same kernels in the same order, with the same bits, without the interpreter's lock. The text is
parsed by private functions of torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from decimal import Decimal

import torch

from purine.graph import NOTHING, Op
from purine.registry import aten
from purine.registry.kind import Kernel

__all__ = ["compile_ops", "is_scriptable", "keep_order"]

_DTYPES = "uint8 int8 int16 int32 int64 float16 float32 float64 - complex64 complex128 bool - - -"
_FORMATS = "contiguous_format preserve_format channels_last"
_CODES = {
    getattr(torch, name): code
    for names in (f"{_DTYPES} bfloat16", _FORMATS)
    for code, name in enumerate(names.split())
    if name != "-"
}
"""The numbers of dtypes and of memory formats."""


def keep_order() -> None:
    """Let the calling thread run compiled ops as they are written, without optimisation."""
    torch._C._set_graph_executor_optimize(False)


def is_scriptable(op: Op) -> bool:
    """Whether an op is a plain ATen call."""
    own = (op.kind, aten.device_of(op.location).type) in aten.KERNELS
    return op.kind.startswith("aten.") and aten.kind_of(op.kind) is not None and not own


def compile_ops(
    ops: Sequence[Op],
    inputs: Sequence[str],
    outputs: Sequence[str],
    over: Callable[[Op], int | None],
) -> Kernel:
    """One kernel for a sequence of ops, from blobs `inputs` to blobs `outputs`.

    `over` tells which input an op may write its result over. Raises a RuntimeError or a KeyError if
    the representation cannot express the ops.
    """
    graph = torch._C.parse_ir(_Text(inputs).text(ops, outputs, over))
    for node in graph.nodes():
        if not node.kind().startswith("prim::") and node.schema() == "(no schema)":
            raise RuntimeError(f"torch does not know the arguments of {node.kind()}")
    function: Kernel = torch._C._create_function_from_graph("segment", graph)
    return function


class _Text:
    def __init__(self, inputs: Sequence[str]) -> None:
        self.lines: list[str] = []
        self.values: dict[str, str] = {name: f"%b{k}" for k, name in enumerate(inputs)}
        self.inputs = [f"%b{k} : Tensor" for k in range(len(inputs))]
        self.constants: dict[tuple[str, str], str] = {}
        self.count = len(inputs)

    def text(
        self, ops: Sequence[Op], outputs: Sequence[str], over: Callable[[Op], int | None]
    ) -> str:
        for op in ops:
            self._call(op, over(op))
        given = [self.values[name] for name in outputs]
        if len(given) == 1:
            returned = given[0]
        else:
            types = ", ".join("Tensor" for _ in given)
            returned = self._fresh()
            self.lines.append(f"{returned} : ({types}) = prim::TupleConstruct({', '.join(given)})")
        body = "\n".join(f"  {line}" for line in self.lines)
        return f"graph({', '.join(self.inputs)}):\n{body}\n  return ({returned})\n"

    def _fresh(self) -> str:
        self.count += 1
        return f"%v{self.count}"

    def _call(self, op: Op, over: int | None) -> None:
        overload, arguments = aten.written_over(op, over)
        schema = overload._schema
        parts = [self._argument(schema.arguments[k], value, op) for k, value in arguments]
        results = [str(item.type) for item in schema.returns]
        name = schema.name
        if results == ["List[Tensor]"]:
            whole = self._fresh()
            self.lines.append(f"{whole} : Tensor[] = {name}({', '.join(parts)})")
            names = []
            for position in range(len(op.outputs)):
                call = f"aten::__getitem__({whole}, {self._constant(position)})"
                names.append(self._fresh())
                self.lines.append(f"{names[-1]} : Tensor = {call}")
        else:
            names = [self._fresh() for _ in results]
            typed = ", ".join(f"{item} : Tensor" for item in names)
            self.lines.append(f"{typed} = {name}({', '.join(parts)})")
        for blob, value in zip(op.outputs, names, strict=False):
            if blob != NOTHING:
                self.values[blob] = value

    def _argument(self, argument: torch.Argument, value: object, op: Op) -> str:
        if isinstance(value, aten.Input):
            return self.values[op.inputs[value.place]]
        if isinstance(value, aten.Inputs):
            items = [
                self._constant(None) if position is None else self.values[op.inputs[position]]
                for position in value.places
            ]
            element = "Tensor?" if "Optional[Tensor]" in str(argument.type) else "Tensor"
            return self._list(f"{element}[]", items)
        return self._constant(value, str(argument.type))

    def _constant(self, value: object, kind: str = "") -> str:
        if isinstance(value, torch.dtype | torch.memory_format):
            value = _CODES[value]
        elif isinstance(value, torch.layout):
            value = 0
        if isinstance(value, list | tuple):
            if not value and "Optional[number]" in kind:
                return self._list("Scalar?[]", [])
            real = "float" if "float" in kind else type(value[0]).__name__ if value else "int"
            return self._list(f"{real}[]", [self._constant(item, real) for item in value])
        if value is None:
            return self._declare("NoneType", "")
        if isinstance(value, bool):
            return self._declare("bool", f"[value={int(value)}]")
        if isinstance(value, torch.device | str):
            sort = "str" if isinstance(value, str) else "Device"
            return self._declare(sort, f'[value="{value}"]')
        if isinstance(value, float) or kind in ("float", "Optional[float]"):
            assert isinstance(value, int | float)
            return self._float(float(value))
        assert isinstance(value, int), value
        return self._declare("int", f"[value={value}]")

    def _float(self, value: float) -> str:
        if math.isnan(value):
            raise RuntimeError("TorchScript's text cannot express NaN")
        # Without an exponent, since torch's parser rounds numbers that have one.
        text = f"{Decimal(repr(value)):f}" if math.isfinite(value) else repr(value)
        point = "." if text.lstrip("-").isdigit() else ""
        return self._declare("float", f"[value={text}{point}]")

    def _declare(self, kind: str, value: str) -> str:
        key = (kind, value)
        if key not in self.constants:
            self.constants[key] = name = self._fresh()
            self.lines.append(f"{name} : {kind} = prim::Constant{value}()")
        return self.constants[key]

    def _list(self, kind: str, items: Sequence[str]) -> str:
        name = self._fresh()
        self.lines.append(f"{name} : {kind} = prim::ListConstruct({', '.join(items)})")
        return name
