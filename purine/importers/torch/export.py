"""A module and its loss as one functional ATen program, by `torch.export`.

The one place of the importer that knows torch's exporter. In what comes out nothing is written in
place, recurrent layers are unrolled, attention with dropout is spelt out, and what `torch.no_grad`
made is detached.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from operator import getitem
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import GraphModule, Node
from torch.fx._lazy_graph_module import _use_lazy_graph_module
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from purine.errors import ConfigError, GraphError, PurineError
from purine.importers.torch.autograd import (
    following_autograd,
    hooked_parameters,
    refuse_backward_hooks,
)
from purine.importers.torch.batch import Batch, leaves_of
from purine.importers.torch.branches import Branches, python_draws
from purine.importers.torch.layers import FUNCTIONS, traceable_layers
from purine.importers.torch.packed import masked_sequences
from purine.importers.torch.patched import TORCH, patched, source_of, tracing
from purine.importers.torch.places import code_at, place_of
from purine.importers.torch.rules import (
    add_hook,
    following_rules,
    is_random,
    leading_to,
    spread_hooks,
)
from purine.importers.torch.state import (
    Attributes,
    Buffers,
    Change,
    holds_tensors_alone,
    noting_lines,
    refuse_changes,
    refuse_written,
    refuse_written_constant,
    tensors_of,
)
from purine.importers.torch.writes import hidden_write

__all__ = [
    "LOSS",
    "MODULE",
    "OUTPUT",
    "Program",
    "changed",
    "export",
    "is_overload",
    "mode",
    "source_of",
]

LOSS = "loss"
MODULE = "module."
OUTPUT = "output"

_LAYERS = os.path.join(TORCH, "nn", "modules", "")
_EXPORTER = tuple(os.path.join(TORCH, part, "") for part in ("_export", "export", "fx"))


@dataclass(frozen=True, slots=True)
class Program:
    """An exported program, and the names of its results: reported scalars, outputs, conditions.

    `expected` are the places in the user's code of conditions that the trace took to hold, with
    their code. `training` is the mode of the module. `plain` says that in test mode it would differ
    by torch's own dropout and batch norm alone, whose test forms are known. `changes` are
    attributes that the forward changed. `switched` says that it changes parameters when the mode
    was changed, once.
    """

    exported: Any
    reported: tuple[str, ...]
    outputs: tuple[str, ...]
    expected: tuple[tuple[str, str], ...]
    training: bool
    plain: bool
    changes: tuple[Change, ...] = ()
    switched: bool = False

    @property
    def changes_parameters(self) -> bool:
        return changes_parameters(self.exported)

    @property
    def nodes(self) -> list[Node]:
        return list(self.exported.graph.nodes)


def changes_parameters(exported: Any) -> bool:
    """Whether a program writes to parameters."""
    specs = exported.graph_signature.output_specs
    return any(spec.kind.name == "PARAMETER_MUTATION" for spec in specs)


def _switches(module: nn.Module, exported: Any) -> bool:
    """Whether a forward in test mode writes to parameters, such as once after training."""
    return not module.training and changes_parameters(exported.run_decompositions({}))


def export(module: nn.Module, loss: Callable[..., Any], batch: Batch) -> Program:
    """Trace the module, in the mode it is in, together with the loss."""
    step = _Step(module, loss, batch)
    refuse_backward_hooks(step)
    try:
        with (
            tracing(),
            warnings.catch_warnings(),
            _uncollected(),
            _use_lazy_graph_module(True),
            _watching() as watched,
        ):
            warnings.simplefilter("ignore")  # about attributes that torch's own layers assign
            exported = _traced(step, batch)
            if step.found.changes and not _switches(module, exported):
                again = _Step(module, loss, batch)
                moving = _moving(again, batch, step.found.changes)
                refuse_changes(moving, lambda: _differs(again, batch, exported))
            _refuse_hidden_write(exported)
            _detach_no_grad(exported)
            exported = exported.run_decompositions(_decompositions())
        spread_hooks(exported.graph)
        if module.training:  # in tests, a change that is made once may be followed
            refuse_written(step, exported)
    except PurineError:
        raise
    except Exception as raised:
        error = raised.error if isinstance(raised, _DependsOnValues) else raised
        refuse_written_constant(step, error)
        _refuse_failing(module, loss, batch)
        raise _untraced(module, error) from error
    plain = not watched.asked and _has_plain_modes(module, exported)
    found = step.found
    return Program(
        exported,
        found.reported,
        found.outputs,
        found.expected,
        module.training,
        plain,
        tuple(found.changes),
    )


def _traced(step: _Step, batch: Batch) -> Any:
    """The exported program of a step; modules keep the attributes that they have."""
    attributes = Attributes(step)
    with (
        following_autograd(),
        following_rules(),
        noting_lines() as step.found.lines,
        _unadvised(),
    ):
        try:
            return torch.export.export(step, batch.values, strict=False)
        finally:
            attributes.restore()


def _moving(step: _Step, batch: Batch, changes: Sequence[Change]) -> list[Change]:
    """The changes but for tensors that are the same every time, like a mask that is made once.

    Such a tensor depends on no input and no state; in test mode, when states stay as they are, it
    may depend on these.
    """
    if not any(tensors_of(change.after) for change in changes):
        return list(changes)
    step.found.shows_changes = True
    try:
        exported = _traced(step, batch)
    finally:
        step.found.shows_changes = False
    signature = exported.graph_signature
    states = {*signature.inputs_to_parameters, *signature.inputs_to_buffers}
    steady = set() if step.training else states
    nodes = list(exported.graph.nodes)
    moving = {n for n in nodes if (n.op == "placeholder" and n.name not in steady) or is_random(n)}
    shown = iter(nodes[-1].args[0])
    found = []
    for change in changes:
        values = [next(shown) for _ in tensors_of(change.after)]
        before = leading_to([value for value in values if isinstance(value, Node)])
        if not holds_tensors_alone(change.after) or not moving.isdisjoint(before):
            found.append(change)
    return found


def _differs(step: _Step, batch: Batch, known: Any) -> bool:
    """Whether the program of a step is another than a known one, or has other constants."""
    try:
        found = _traced(step, batch)
    except Exception:
        return True
    if _text_of(found) != _text_of(known) or found.constants.keys() != known.constants.keys():
        return True
    return not all(
        torch.equal(value, known.constants[key]) for key, value in found.constants.items()
    )


def _text_of(exported: Any) -> list[str]:
    parts = exported.graph_module.modules()
    return [str(part.graph) for part in parts if isinstance(part, GraphModule)]


def _refuse_hidden_write(exported: Any) -> None:
    write = hidden_write(exported)
    if write is not None:
        raise GraphError(
            "a value is changed in place where autograd does not see it, and is read again",
            where=source_of(write),
            expected="writes in place that take part in the gradient, or values without one",
            found=f"{write.target} through detach() or .data, or inside no_grad()",
            remedy="write x = x + (f(x) - x).detach(), which has the value f(x) and the gradient "
            "of x, or move the write out of no_grad()",
        )


def _untraced(module: nn.Module, error: Exception) -> GraphError:
    """The error that a trace failed, in the user's terms where they are known."""
    where = place_of(error)
    if isinstance(error, GuardOnDataDependentSymNode):
        return GraphError(
            f"the path of module {type(module).__name__} depends on the values of tensors",
            where=where,
            expected="a forward and a loss that take one path whatever the values are",
            found=code_at(where) or _first_line(error),
            remedy="compute both ways and choose with torch.where(condition, a, b), not with if; "
            "use tensors in place of .item(), .tolist() and int() of them",
        )
    return GraphError(
        f"module {type(module).__name__} cannot be traced",
        where=where,
        expected="a forward and a loss that torch.export can follow",
        found=_first_line(error),
        remedy="write this line with operations on tensors alone, or without what fails there",
    )


def _refuse_failing(module: nn.Module, loss: Callable[..., Any], batch: Batch) -> None:
    """Refuse a module or a loss that fails on the example without being traced, too."""
    arguments, keywords, targets = batch.rebuild([value.clone() for value in batch.values])
    with torch.random.fork_rng(devices=[]):
        try:
            outputs = _called(module, *arguments, **keywords)
        except Exception as error:
            raise ConfigError(
                f"module {type(module).__name__} fails on its example",
                where=place_of(error),
                expected=f"a module that takes {_forms([*arguments, *keywords.values()])}",
                found=_first_line(error),
                remedy="mend the module or the example, until module(*inputs) works",
            ) from error
        try:
            _called(loss, outputs, *targets)
        except Exception as error:
            raise ConfigError(
                "the loss function fails on the module's outputs and the targets of the example",
                where=place_of(error),
                expected=f"a function of {_forms([outputs, *targets])}",
                found=_first_line(error),
                remedy=_mend_loss(outputs, targets),
            ) from error


def _mend_loss(outputs: object, targets: Sequence[object]) -> str:
    if not isinstance(outputs, Tensor):
        form = type(outputs).__name__
        return f"let the loss take what it compares out of the {form}: lambda y, *targets: ..."
    if any(isinstance(target, Tensor) and target.is_floating_point() for target in targets):
        return "give labels of classes as int64; or mend the loss, until it works on the example"
    return "mend the loss or the targets, until loss(module(*inputs), *targets) works"


def _called(part: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    """What a module or function gives; buffers of a module stay as they are."""
    if not isinstance(part, nn.Module):
        return part(*arguments, **keywords)
    buffers = {name: value.clone() for name, value in part.named_buffers()}
    return torch.func.functional_call(part, buffers, arguments, keywords)


def _forms(values: Sequence[object]) -> str:
    return ", ".join(
        f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
        if isinstance(value, Tensor)
        else f"a {type(value).__name__}"
        for value in values
    )


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {text[0]}"


@contextmanager
def _uncollected() -> Iterator[None]:
    """No search for garbage: among the objects of a trace it takes a sixth of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def _unadvised() -> Iterator[None]:
    """Without torch's warning that it has no advice about a branch on a value: we have some."""
    logger = logging.getLogger(GuardOnDataDependentSymNode.__module__)
    logger.addFilter(_is_other_news)
    try:
        yield
    finally:
        logger.removeFilter(_is_other_news)


def _is_other_news(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith("Unable to find user code")


class _DependsOnValues(Exception):
    """Holds torch's error that a trace depends on values: seeing that, torch prints its graphs."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(slots=True)
class _Watched:
    """Whether somebody asked for the mode of a module, but for layers that are known."""

    asked: bool = False


@contextmanager
def _watching() -> Iterator[_Watched]:
    """Watch who reads `training` of modules while they are traced."""
    watched = _Watched()

    def training(self: nn.Module) -> bool:
        file = sys._getframe(1).f_code.co_filename
        known = file.startswith(_LAYERS) and _is_known(type(self))
        if not known and not file.startswith(_EXPORTER):
            watched.asked = True
        return bool(self.__dict__["training"])

    def set_training(self: nn.Module, value: bool) -> None:
        self.__dict__["training"] = value

    with patched(nn.Module, "training", property(training, set_training)):
        yield watched


def _is_known(layer: type) -> bool:
    return layer is nn.Dropout or issubclass(layer, nn.modules.batchnorm._BatchNorm)


def _has_plain_modes(module: nn.Module, exported: Any) -> bool:
    """Whether what depends on the mode is in layers that are known, and nothing else happens."""
    for part in module.modules():
        if type(part).train is not nn.Module.train or type(part).eval is not nn.Module.eval:
            return False
    for node in exported.graph.nodes:
        name = str(node.target)
        if name.startswith(("aten.native_dropout", "aten._native_batch_norm")):
            stack = list((node.meta.get("nn_module_stack") or {}).values())
            layer = str(stack[-1][1]) if stack else ""
            if "torch.nn.modules.dropout.Dropout" not in layer and (
                "torch.nn.modules.batchnorm." not in layer
            ):
                return False
    return True


@contextmanager
def mode(module: nn.Module, *, training: bool) -> Iterator[None]:
    """The module in training or test mode; parts that are frozen in training stay so."""
    before = {part: part.training for part in module.modules()}
    if module.training is not training:
        module.train(training)
    try:
        yield
    finally:
        for part, flag in before.items():
            part.training = flag


@contextmanager
def changed(changes: Sequence[Change]) -> Iterator[None]:
    """Modules with their attributes as a trace left them."""
    before = [(change.part, dict(change.part.__dict__)) for change in changes]
    for change in changes:
        change.part.__dict__[change.name] = change.after
    try:
        yield
    finally:
        for part, attributes in reversed(before):
            part.__dict__.clear()
            part.__dict__.update(attributes)


def is_overload(node: Node) -> bool:
    """Whether a node calls an operator of torch, rather than Python or a graph within the graph."""
    return isinstance(node.target, torch._ops.OpOverload)


@dataclass(slots=True)
class _Found:
    """What is known once a step has been traced.

    The names of its results, the attributes of modules that it changes, and the lines that do so.
    With `shows_changes` it returns the tensors among these attributes, in place of its results.
    An object of its own, for torch puts back all attributes of the modules that it traces.
    """

    reported: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    changes: Sequence[Change] = ()
    shows_changes: bool = False
    lines: Mapping[tuple[int, str], str | None] = field(default_factory=dict)
    expected: tuple[tuple[str, str], ...] = ()


class _Step(nn.Module):  # type: ignore[misc]
    """Module and loss as one function of the tensors of a batch."""

    def __init__(self, module: nn.Module, loss: Callable[..., Any], batch: Batch) -> None:
        super().__init__()
        self.module = module
        self.loss = _called_forward(loss)
        self.training = module.training
        self.rebuild = batch.rebuild
        self.found = _Found()
        self.hooks = hooked_parameters(self)

    def forward(self, *values: Tensor) -> tuple[Tensor, ...]:
        try:
            return self._results(values)
        except GuardOnDataDependentSymNode as error:
            raise _DependsOnValues(error) from error

    def _results(self, values: Sequence[Tensor]) -> tuple[Tensor, ...]:
        attributes, buffers = Attributes(self), Buffers(self)
        results = self._computed(values)
        buffers.write_back(self.found.lines)
        self.found.changes = attributes.changes(self.found.lines)
        if self.found.shows_changes:
            return tuple(v for change in self.found.changes for v in tensors_of(change.after))
        return results

    def _computed(self, values: Sequence[Tensor]) -> tuple[Tensor, ...]:
        for name, hooks in self.hooks.items():
            for hook in hooks:
                add_hook(self.get_parameter(name), hook)
        arguments, keywords, targets = self.rebuild(values)
        branches = Branches(FUNCTIONS)
        with python_draws(), traceable_layers(), masked_sequences(branches.greatest), branches:
            outputs = self.module(*arguments, **keywords)
            found = self.loss(outputs, *targets)
        reported = found if isinstance(found, Mapping) else {LOSS: found}
        _check_reported(reported)
        leaves = [item for item in leaves_of(outputs, OUTPUT) if isinstance(item[1], Tensor)]
        self.found.reported = tuple(reported)
        self.found.outputs = tuple(name for name, _ in leaves)
        self.found.expected = tuple((item.where, item.code) for item in branches.expected)
        conditions = (item.condition for item in branches.expected)
        return (*reported.values(), *(value for _, value in leaves), *conditions)


def _called_forward(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function under the name `forward`: torch keeps lines of functions of that name alone."""
    if not isinstance(function, FunctionType):
        return function
    code = function.__code__.replace(co_name="forward")
    made = FunctionType(
        code, function.__globals__, "forward", function.__defaults__, function.__closure__
    )
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def _check_reported(reported: Mapping[str, Any]) -> None:
    if LOSS not in reported:
        raise ConfigError(
            "the loss function gives no loss",
            expected=f"a scalar tensor, or a mapping of scalars with {LOSS!r} among them",
            found=", ".join(map(str, reported)) or "nothing",
            remedy=f"call one of the results {LOSS!r}",
        )
    for name, value in reported.items():
        if not isinstance(value, Tensor) or value.ndim != 0:
            form = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise ConfigError(
                f"the loss function gives {name!r}, which is no scalar",
                expected="scalar tensors",
                found=f"{name}: {form}",
                remedy="take the mean over the batch",
            )


@cache
def _decompositions() -> dict[Any, Callable[..., Any]]:
    """Recurrent layers as plain ops, for they differ between devices; and attention."""
    known, ops = torch.export.default_decompositions(), torch.ops.aten
    found: dict[Any, Callable[..., Any]] = {
        ops.scaled_dot_product_attention.default: _attention,
    }
    for packet in (ops.lstm, ops.gru, ops.rnn_tanh, ops.rnn_relu):
        for overload, sources in ((packet.input, 1), (packet.data, 2)):
            if overload in known:
                found[overload] = _layer_by_layer(known[overload], sources)
    return found


def _layer_by_layer(unrolled: Callable[..., Any], sources: int) -> Callable[..., Any]:
    """Stacked recurrent layers one at a time: torch's own form forgets the dropout between them.

    The first `sources` arguments are the input and, where it is packed, its batch sizes.
    """

    def stacked(*given: Any) -> Any:
        x, *packed = given[:sources]
        hx, params, biases, count, dropout, *rest = given[sources:]
        training = rest[0]
        if dropout == 0.0 or not training or count == 1:
            return unrolled(*given)
        single = isinstance(hx, Tensor)
        states = [state.chunk(count) for state in ([hx] if single else hx)]
        each = len(params) // count
        finals = []
        for layer, first in enumerate(zip(*states, strict=True)):
            weights = params[layer * each : (layer + 1) * each]
            source = F.dropout(x, dropout) if layer else x
            start = first[0] if single else list(first)
            x, *last = unrolled(source, *packed, start, weights, biases, 1, 0.0, *rest)
            finals.append(last)
        return (x, *(torch.cat(state) for state in zip(*finals, strict=True)))

    return stacked


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Attention whose dropout can be drawn by us; without dropout it stays one op."""
    if dropout_p == 0.0:
        return NotImplemented
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
        value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    scores = query @ key.transpose(-2, -1) * factor
    if is_causal:
        attn_mask = scores.new_ones(scores.shape[-2:], dtype=torch.bool).tril()
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, float("-inf"))
    elif attn_mask is not None:
        scores = scores + attn_mask
    return F.dropout(scores.softmax(-1), dropout_p) @ value


def _detach_no_grad(exported: Any) -> None:
    """Detach what comes out of `no_grad`: decomposing forgets that gradients end there."""
    graph = exported.graph
    region = torch.ops.higher_order.wrap_with_set_grad_enabled
    regions = [n for n in graph.nodes if n.target is region and n.args[0] is False]
    for node in regions:
        for result in [user for user in node.users if user.target is getitem]:
            with graph.inserting_after(result):
                detached = graph.call_function(torch.ops.aten.detach.default, (result,))
            detached.meta = dict(result.meta)
            result.replace_all_uses_with(
                detached, delete_user_cb=lambda user, own=detached: user is not own
            )
    if regions:
        exported.graph_module.recompile()
