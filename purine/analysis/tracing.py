"""Running functions on fake tensors: shapes, flops, and the joint of an op and its gradient.

A new release of torch may change its private modules. Purine uses these:

- here and in `analysis.purity`: fake tensors, the schemas of overloads, registry of flops;
- `registry.aten`: overloads and their schemas, which name the inputs and attributes of ATen kinds;
- `kinds.update`: `_foreach` functions and fused optimizer kernels; `kinds.add_at`: `_assert_async`;
- `compile`: Inductor, its tracing context and allocator settings, and the TorchScript interpreter;
- `importers.torch`: the gradient mode, packed sequences and higher-order operators;
- `lowering.collectives`: the NCCL reduction.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cache
from itertools import compress
from operator import getitem

import torch
from torch import Tensor
from torch._C import DispatchKey, FunctionSchema
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import map_arg

from purine.analysis.purity import watched
from purine.graph import Attribute
from purine.registry import aten
from purine.registry.kind import Kernel
from purine.registry.spec import Inferred, Spec

__all__ = [
    "ONE_AT_A_TIME",
    "Call",
    "Inferred",
    "Joint",
    "Spec",
    "count_flops",
    "has_flops",
    "infer",
    "leading_to",
    "trace_joint",
    "written_by",
]

ONE_AT_A_TIME = threading.RLock()
"""Held while torch records, compiles or runs under a mode: it changes state of the whole process,
so that two threads would see each other's."""

_META = "meta"


@cache
def _fake() -> FakeTensorMode:
    """The mode of all fake tensors here: to make one takes longer than to run an op in it.

    Only the thread that holds `ONE_AT_A_TIME` enters it.
    """
    return FakeTensorMode()


@contextmanager
def _quiet() -> Iterator[None]:
    """Without torch's log of a call that fails: the caller turns the failure into an error."""
    log = logging.getLogger("torch._subclasses.fake_tensor")

    def drop(record: logging.LogRecord) -> bool:
        return False

    log.addFilter(drop)
    try:
        yield
    finally:
        log.removeFilter(drop)


@dataclass(frozen=True, slots=True)
class Call:
    """One recorded call. Values are numbered: inputs, then cotangents, then results of calls.

    `results` has one entry per result: its number and spec, or None where nobody uses it.
    """

    kind: str
    inputs: tuple[int, ...]
    attributes: dict[str, Attribute]
    results: tuple[tuple[int, Spec] | None, ...]


@dataclass(frozen=True, slots=True)
class Joint:
    """A function and its gradient as calls, split at the cotangent.

    `outputs` are the numbers of the results, `gradients` those of the gradients of the inputs (or
    None), `pulled` says which outputs have a cotangent.
    """

    forward: tuple[Call, ...]
    backward: tuple[Call, ...]
    outputs: tuple[int, ...]
    gradients: tuple[int | None, ...]
    pulled: tuple[bool, ...]


def infer(function: Kernel, inputs: Sequence[Spec], *, watch: bool = False) -> Inferred:
    """Call a function on tensors without values and look at what it returns.

    With `watch`, an `ImpureCall` where the function writes over an input or draws random numbers.
    Meta tensors are tried first, since they are several times faster than fake tensors.
    """
    devices = {spec.device for spec in inputs}
    if len(devices) == 1:
        with suppress(Exception), ONE_AT_A_TIME if watch else nullcontext():
            result = _inferred(function, [replace(spec, device=_META) for spec in inputs], watch)
            if all(spec is None or spec.device == _META for spec in result.specs):
                (device,) = devices
                specs = (spec and replace(spec, device=device) for spec in result.specs)
                return replace(result, specs=tuple(specs))
    with ONE_AT_A_TIME, _quiet(), _fake():
        return _inferred(function, inputs, watch)


def _inferred(function: Kernel, inputs: Sequence[Spec], watch: bool) -> Inferred:
    with torch.no_grad():
        values = [_empty(spec) for spec in inputs]
        with watched(values) if watch else nullcontext():
            returned = function(*values)
        results = _as_tuple(returned)
        memory = {value.untyped_storage()._cdata: n for n, value in reversed([*enumerate(values)])}
        aliases = tuple(
            None if result is None else memory.get(result.untyped_storage()._cdata)
            for result in results
        )
    specs = tuple(None if result is None else _spec(result) for result in results)
    return Inferred(specs, aliases, not isinstance(returned, Tensor))


def has_flops(function: Kernel) -> bool:
    """Whether torch's flop counter may count something in a function."""
    if not isinstance(function, OpOverload):
        return True
    from torch.utils.flop_counter import flop_registry  # imports Triton

    composite = function.has_kernel_for_dispatch_key(DispatchKey.CompositeImplicitAutograd)
    return function._overloadpacket in flop_registry or composite


def count_flops(function: Kernel, inputs: Sequence[Spec]) -> int:
    """The floating-point operations of a call, as torch's flop counter has them.

    Meta tensors are tried first, since most functions have none. Where they have some, what they
    call may depend on the device, which fake tensors tell.
    """
    with suppress(Exception), ONE_AT_A_TIME:
        if _counted(function, [replace(spec, device=_META) for spec in inputs]) == 0:
            return 0
    with ONE_AT_A_TIME, _quiet(), _fake():
        return _counted(function, inputs)


def _counted(function: Kernel, inputs: Sequence[Spec]) -> int:
    from torch.utils.flop_counter import FlopCounterMode

    counter = FlopCounterMode(display=False)
    with torch.no_grad(), counter:
        function(*map(_empty, inputs))
    return int(counter.get_total_flops())


def trace_joint(function: Kernel, inputs: Sequence[Spec], wanted: Sequence[bool]) -> Joint:
    """Record a function together with the gradient of its `wanted` inputs.

    Calls that do not depend on a cotangent are the forward part, saved values included; the others
    are the backward part.
    """
    with ONE_AT_A_TIME:
        return _traced(function, inputs, wanted)


def _traced(function: Kernel, inputs: Sequence[Spec], wanted: Sequence[bool]) -> Joint:
    count = len(inputs)
    fake = _fake()
    with _quiet(), fake:
        values = [_empty(s).requires_grad_(want) for s, want in zip(inputs, wanted, strict=True)]
        results = _as_tuple(function(*values))
        pulled = tuple(result.requires_grad for result in results)
        cotangents = [torch.empty_like(r.detach()) for r in results if r.requires_grad]

    def joint(*arguments: Tensor) -> tuple[Tensor | None, ...]:
        values, cotangents = arguments[:count], arguments[count:]
        results = _as_tuple(function(*values))
        sources = list(compress(values, wanted))
        pulls = list(compress(results, pulled))
        gradients = iter(torch.autograd.grad(pulls, sources, cotangents, allow_unused=True))
        return (*results, *(next(gradients) if want else None for want in wanted))

    with _quiet(), fake:  # also what the function creates has to be fake
        module = make_fx(joint)(*values, *cotangents)
        written = (value for node in module.graph.nodes for value in written_by(node))
        if any(_is_view(each) for value in written for each in (value, *value.users)):
            # A call writes in place to memory that another value shares.
            pure = torch.func.functionalize(module, remove="mutations")
            module = make_fx(pure)(*(value.detach() for value in (*values, *cotangents)))
    return _Recorder(list(module.graph.nodes), count, len(results), pulled).joint()


def leading_to(nodes: Iterable[Node]) -> set[Node]:
    """Some nodes of a recorded function, and all that they depend on."""
    reached: set[Node] = set()
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if node not in reached:
            reached.add(node)
            waiting += node.all_input_nodes
    return reached


def written_by(node: Node) -> Iterator[Node]:
    """The nodes of a recorded function into whose results a call writes in place."""
    schema = _schema_of(node)
    for index, argument in enumerate(() if schema is None else schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            named = node.kwargs.get(argument.name)
            written: list[Node] = []
            map_arg(node.args[index] if index < len(node.args) else named, written.append)
            yield from written


def _is_view(node: Node) -> bool:
    schema = _schema_of(node)
    shown = [result.alias_info for result in schema.returns] if schema is not None else []
    return any(info is not None and not info.is_write for info in shown)


def _schema_of(node: Node) -> FunctionSchema | None:
    return getattr(node.target, "_schema", None) if node.op == "call_function" else None


class _Recorder:
    """Turns the nodes of a traced joint into numbered calls."""

    def __init__(
        self, nodes: Sequence[Node], inputs: int, outputs: int, pulled: tuple[bool, ...]
    ) -> None:
        self.nodes, self.inputs, self.outputs, self.pulled = nodes, inputs, outputs, pulled
        self.numbers: dict[Node, int] = {}
        self.late: set[int] = set()
        self.transposed: dict[int, int] = {}
        self.next = 0

    def joint(self) -> Joint:
        forward: list[Call] = []
        backward: list[Call] = []
        for node in self.nodes:
            if node.op == "placeholder":
                self.numbers[node] = self._new()
                if self.numbers[node] >= self.inputs:
                    self.late.add(self.numbers[node])
            elif node.op == "call_function" and node.target is not getitem:
                recorded = self._call(node)
                for call in () if recorded is None else _split_convolution_backward(recorded):
                    late = any(number in self.late for number in call.inputs)
                    (backward if late else forward).append(call)
                    if late:
                        self.late.update(r[0] for r in call.results if r is not None)
        returned = self.nodes[-1].args[0]
        assert isinstance(returned, tuple | list)
        final = [self._number(node) for node in returned]
        results, gradients = final[: self.outputs], final[self.outputs :]
        assert None not in results
        live = {number for number in final if number is not None}
        backward = _without_dead(backward, live)
        forward = _without_dead(forward, live)
        outputs = tuple(number for number in results if number is not None)
        return Joint(tuple(forward), tuple(backward), outputs, tuple(gradients), self.pulled)

    def _new(self) -> int:
        self.next += 1
        return self.next - 1

    def _call(self, node: Node) -> Call | None:
        overload = node.target
        assert isinstance(overload, OpOverload)
        kind = _out_of_place(aten.name_of(overload))
        inputs, attributes = aten.attributes_of(overload, node.args, node.kwargs, self._number)
        if kind in ("aten.detach", "aten.alias"):
            self.numbers[node] = inputs[0]
            return None
        if kind == "aten.t" and inputs[0] in self.transposed:
            self.numbers[node] = self.transposed[inputs[0]]
            return None
        if kind in ("aten.view", "aten._unsafe_view"):
            # A view asks for strides that the recorded layout had and the run's need not have.
            kind, attributes = "aten.reshape", {"shape": attributes["size"]}
        value = node.meta.get("val")
        if value is None:
            assert not overload._schema.is_mutable, overload
            return None  # a check that has no result
        if not isinstance(value, tuple | list):
            number = self.numbers[node] = self._new()
            if kind == "aten.t":
                self.transposed[number] = inputs[0]
            return Call(kind, tuple(inputs), attributes, ((number, _spec(value)),))
        used = {user.args[1]: user for user in node.users if user.target is getitem and user.users}
        results: list[tuple[int, Spec] | None] = []
        for index, item in enumerate(value):
            if index in used and item is not None:
                number = self.numbers[used[index]] = self._new()
                results.append((number, _spec(item)))
            else:
                results.append(None)
        return Call(kind, tuple(inputs), attributes, tuple(results))

    def _number(self, value: object) -> int | None:
        return self.numbers[value] if isinstance(value, Node) else None


def _without_dead(calls: Sequence[Call], live: set[int]) -> list[Call]:
    """The calls that something live depends on; `live` grows by what they read."""
    kept = []
    for call in reversed(calls):
        if any(result is not None and result[0] in live for result in call.results):
            live.update(call.inputs)
            kept.append(call)
    return kept[::-1]


def _out_of_place(kind: str) -> str:
    """The out-of-place form of a kind, because every recorded value is written once."""
    space, name, *overload = kind.split(".")
    plain = ".".join((space, name.removesuffix("_"), *overload))
    return plain if name.endswith("_") and aten.kind_of(plain) is not None else kind


def _split_convolution_backward(call: Call) -> tuple[Call, ...]:
    """The input gradient of a convolution and its weight gradient, which may wait, as two calls."""
    wanted = [result is not None for result in call.results]
    if call.kind != "aten.convolution_backward" or not (wanted[0] and any(wanted[1:])):
        return (call,)
    parts = []
    for mask in ((False, wanted[1], wanted[2]), (True, False, False)):
        results = tuple(r if keep else None for r, keep in zip(call.results, mask, strict=True))
        attributes = {**call.attributes, "output_mask": mask}
        parts.append(replace(call, attributes=attributes, results=results))
    return tuple(parts)


def _empty(spec: Spec) -> Tensor:
    return torch.empty(spec.shape, dtype=aten.dtype_of(spec.dtype), device=spec.device)


def _spec(value: Tensor) -> Spec:
    return Spec(tuple(value.shape), aten.dtype_name(value.dtype), str(value.device))


def _as_tuple(results: Tensor | Sequence[Tensor]) -> tuple[Tensor, ...]:
    return (results,) if isinstance(results, Tensor) else tuple(results)
