"""A module and its loss as one functional ATen program, by `torch.export`.

The program writes nothing in place. Recurrent layers are unrolled, attention with dropout is spelt
out, and what `torch.no_grad` computes is detached.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import FunctionType

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from purine.analysis.tracing import leading_to
from purine.errors import ConfigError, GraphError, PurineError
from purine.importers.torch import autograd, state
from purine.importers.torch.batch import LOSS, OUTPUT, Batch, leaves_of
from purine.importers.torch.branches import Branches
from purine.importers.torch.layers import FUNCTIONS, decompositions, detach_no_grad
from purine.importers.torch.lines import code_at, error_line, first_line
from purine.importers.torch.modes import has_plain_modes
from purine.importers.torch.packed import PACKING
from purine.importers.torch.replacements import tracing
from purine.importers.torch.rules import add_hook, is_random, spread_hooks
from purine.importers.torch.state import Change
from purine.importers.torch.tracing import AnyFunction, Trace
from purine.importers.torch.writes import refuse_hidden_writes

__all__ = ["Program", "export"]


@dataclass(slots=True)
class Findings:
    """What is known once a step has been traced.

    `reported` and `outputs` are the names of its results, `expected` the lines and code of
    conditions that the trace took to hold, `changes` the attributes of modules that it changes.
    With `shows_changes` it returns the tensors among these attributes in place of its results.
    An object of its own: torch restores all attributes of the modules that it traces.
    """

    trace: Trace
    reported: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    expected: tuple[tuple[str, str], ...] = ()
    changes: Sequence[Change] = field(default_factory=list)
    shows_changes: bool = False


@dataclass(frozen=True, slots=True)
class Program:
    """An exported program; its results are reported scalars, outputs and conditions.

    `training` is the mode of the module. `plain` says that the test mode differs only in torch's
    dropout and batch norm, whose test forms are known.
    """

    exported: ExportedProgram
    findings: Findings
    training: bool
    plain: bool

    @property
    def nodes(self) -> list[Node]:
        return list(self.exported.graph.nodes)


def export(module: nn.Module, loss: AnyFunction, batch: Batch) -> Program:
    """Trace the module, in the mode it is in, together with the loss."""
    with tracing() as trace:
        step = _Step(module, loss, batch, trace)
        autograd.refuse_backward_hooks(step)
        try:
            exported = _traced(step, batch)
            changes, switches = step.findings.changes, False
            if changes:
                again = _Step(module, loss, batch, trace)
                if not module.training and _changes_parameters(exported):
                    # Such as weights that are rescaled for tests: a flag tells that they are.
                    with state.changed(changes):
                        switches = not _changes_parameters(_traced(again, batch))
                else:
                    moving = _moving(again, batch, changes)
                    state.refuse_changes(moving, lambda: _differs(again, batch, exported))
            refuse_hidden_writes(exported)
            detach_no_grad(exported)
            exported = exported.run_decompositions(decompositions())
            spread_hooks(exported.graph)
            if not switches:
                state.refuse_written(step, exported)
            failure = None
        except PurineError:
            raise
        except Exception as raised:
            failure = raised.error if isinstance(raised, _DependsOnValues) else raised
    if failure is not None:
        state.refuse_written_constant(step, failure)
        _refuse_failing(module, loss, batch)
        raise _untraced(module, failure) from failure
    plain = not trace.reads_mode and has_plain_modes(module, exported)
    return Program(exported, step.findings, module.training, plain)


class _DependsOnValues(Exception):
    """Holds torch's error that a trace depends on values: seeing that, torch prints its graphs."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class _Step(nn.Module):
    """The module to export."""

    def __init__(self, module: nn.Module, loss: AnyFunction, batch: Batch, trace: Trace) -> None:
        super().__init__()
        self.module = module
        self.loss = _named_forward(loss)
        self.training = module.training
        self.rebuild = batch.rebuild
        self.findings = Findings(trace)
        self.hooks = autograd.hooked_parameters(self)

    def forward(self, *values: Tensor) -> tuple[Tensor, ...]:
        try:
            return self._results(values)
        except GuardOnDataDependentSymNode as error:
            raise _DependsOnValues(error) from error

    def _results(self, values: Sequence[Tensor]) -> tuple[Tensor, ...]:
        findings, trace = self.findings, self.findings.trace
        attributes, buffers = state.Attributes(self), state.Buffers(self)
        with autograd.AutogradMode():
            for name, hooks in self.hooks.items():
                for hook in hooks:
                    add_hook(self.get_parameter(name), hook)
        arguments, keywords, targets = self.rebuild(values)
        branches = Branches({**FUNCTIONS, **PACKING})
        with trace.forward(branches.greatest), branches:
            outputs = self.module(*arguments, **keywords)
            losses = self.loss(outputs, *targets)
        reported = _checked_losses(losses)
        named = leaves_of(outputs, OUTPUT)
        leaves = [(name, value) for name, value in named if isinstance(value, Tensor)]
        findings.reported = tuple(reported)
        findings.outputs = tuple(name for name, _ in leaves)
        findings.expected = tuple((where, code) for _, where, code in branches.expected)
        conditions = (condition for condition, _, _ in branches.expected)
        buffers.write_back(trace.assigned)
        findings.changes = attributes.changes(trace.assigned)
        if findings.shows_changes:
            return tuple(v for change in findings.changes for v in state.tensors_of(change.after))
        return (*reported.values(), *(value for _, value in leaves), *conditions)


def _named_forward(function: AnyFunction) -> AnyFunction:
    """The function under the name `forward`: torch keeps lines of functions of that name alone."""
    if not isinstance(function, FunctionType):
        return function
    code = function.__code__.replace(co_name="forward")
    renamed = FunctionType(
        code, function.__globals__, "forward", function.__defaults__, function.__closure__
    )
    renamed.__kwdefaults__ = function.__kwdefaults__
    return renamed


def _checked_losses(losses: object) -> dict[str, Tensor]:
    reported = losses if isinstance(losses, Mapping) else {LOSS: losses}
    if LOSS not in reported:
        expected = f"a scalar tensor, or a mapping of scalars with {LOSS!r} among them"
        found = ", ".join(map(str, reported)) or "nothing"
        remedy = f"call one of the results {LOSS!r}"
        raise ConfigError("the loss function gives no loss", expected, found, remedy)
    for name, value in reported.items():
        if not isinstance(value, Tensor) or value.ndim != 0:
            form = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
            what = f"the loss function gives {name!r}, which is no scalar"
            remedy = "take the mean over the batch"
            raise ConfigError(what, "scalar tensors", f"{name}: {form}", remedy)
    return dict(reported)


def _changes_parameters(exported: ExportedProgram) -> bool:
    return bool(state.written_parameters(exported.run_decompositions({})))


def _traced(step: _Step, batch: Batch) -> ExportedProgram:
    """The exported program of a step; modules keep the attributes that they have."""
    attributes = state.Attributes(step)
    with step.findings.trace.exporting():
        try:
            return torch.export.export(step, batch.values, strict=False)
        finally:
            attributes.restore()


def _moving(step: _Step, batch: Batch, changes: Sequence[Change]) -> list[Change]:
    """The changes but for tensors that are the same every time, such as a mask that is cached.

    Such a tensor depends on no input and no state; in test mode, where states do not change, it
    may depend on these.
    """
    if not any(state.tensors_of(change.after) for change in changes):
        return list(changes)
    step.findings.shows_changes = True
    exported = _traced(step, batch)
    step.findings.shows_changes = False
    signature = exported.graph_signature
    states = {*signature.inputs_to_parameters, *signature.inputs_to_buffers}
    steady = set() if step.training else states
    nodes = list(exported.graph.nodes)
    varying = {n for n in nodes if (n.op == "placeholder" and n.name not in steady) or is_random(n)}
    shown = iter(nodes[-1].args[0])
    moving = []
    for change in changes:
        values = [next(shown) for _ in state.tensors_of(change.after)]
        before = leading_to([value for value in values if isinstance(value, Node)])
        if len(values) < len(state.leaves_of(change.after)) or not varying.isdisjoint(before):
            moving.append(change)
    return moving


def _differs(step: _Step, batch: Batch, known: ExportedProgram) -> bool:
    """Whether a step has another program than a known one, or other constants."""
    try:
        exported = _traced(step, batch)
    except Exception:
        return True
    constants = exported.constants
    if _text_of(exported) != _text_of(known) or constants.keys() != known.constants.keys():
        return True
    return not all(torch.equal(value, known.constants[key]) for key, value in constants.items())


def _text_of(exported: ExportedProgram) -> list[str]:
    parts = exported.graph_module.modules()
    return [str(part.graph) for part in parts if isinstance(part, GraphModule)]


def _untraced(module: nn.Module, error: Exception) -> GraphError:
    where = error_line(error)
    if isinstance(error, GuardOnDataDependentSymNode):
        what = f"the path of module {type(module).__name__} depends on the values of tensors"
        expected = "a forward and a loss that take one path whatever the values are"
        remedy = "compute both ways and choose with torch.where(condition, a, b), not with if; "
        remedy += "use tensors in place of .item(), .tolist() and int() of them"
        return GraphError(what, expected, code_at(where) or first_line(error), remedy, where=where)
    what = f"module {type(module).__name__} cannot be traced"
    expected = "a forward and a loss that torch.export can follow"
    remedy = "write this line with operations on tensors alone, or without what fails there"
    return GraphError(what, expected, first_line(error), remedy, where=where)


def _refuse_failing(module: nn.Module, loss: AnyFunction, batch: Batch) -> None:
    """Refuse a module or a loss that fails on the example even when it is not traced."""
    arguments, keywords, targets = batch.rebuild([value.clone() for value in batch.values])
    what = f"module {type(module).__name__} fails on its example"
    expected = f"a module that takes {_forms([*arguments, *keywords.values()])}"
    remedy = "mend the module or the example, until module(*inputs) works"
    try:
        with torch.random.fork_rng(devices=[]):
            outputs = _called(module, *arguments, **keywords)
            what = "the loss function fails on the module's outputs and the targets of the example"
            expected = f"a function of {_forms([outputs, *targets])}"
            remedy = _mend_loss(outputs, targets)
            _called(loss, outputs, *targets)
    except Exception as error:
        actual = first_line(error)
        raise ConfigError(what, expected, actual, remedy, where=error_line(error)) from error


def _mend_loss(outputs: object, targets: Sequence[object]) -> str:
    if not isinstance(outputs, Tensor):
        form = type(outputs).__name__
        return f"let the loss take what it compares out of the {form}: lambda y, *targets: ..."
    if any(isinstance(target, Tensor) and target.is_floating_point() for target in targets):
        return "give labels of classes as int64; or mend the loss, until it works on the example"
    return "mend the loss or the targets, until loss(module(*inputs), *targets) works"


def _called(part: AnyFunction, *arguments: object, **keywords: object) -> object:
    """What a module or function returns; buffers of a module stay as they are."""
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
