"""A module and its loss as one functional ATen program, by `torch.export`.

The program writes nothing in place. Recurrent layers are unrolled, attention with dropout is spelt
out, and what `torch.no_grad` computes is detached.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from purine.errors import GraphError, PurineError
from purine.importers.torch import state
from purine.importers.torch.autograd import refuse_backward_hooks
from purine.importers.torch.batch import Batch
from purine.importers.torch.decompositions import decompositions, detach_no_grad
from purine.importers.torch.failures import refuse_failing, untraced
from purine.importers.torch.lines import source_of
from purine.importers.torch.modes import has_plain_modes
from purine.importers.torch.replacements import tracing
from purine.importers.torch.rules import is_random, leading_to, spread_hooks
from purine.importers.torch.state import Change
from purine.importers.torch.step import DependsOnValues, Step
from purine.importers.torch.tracing import AnyFunction
from purine.importers.torch.writes import hidden_write

__all__ = ["Program", "export", "left_behind"]


@dataclass(frozen=True, slots=True)
class Program:
    """An exported program, and the names of its results: reported scalars, outputs, conditions.

    `expected` are the lines of conditions that the trace took to hold, with their code. `training`
    is the mode of the module. `plain` says that the test mode differs only in torch's dropout and
    batch norm, whose test forms are known. `changes` are attributes that the forward changed.
    `switched` says that the forward changes parameters only the first time after a change of mode.
    """

    exported: ExportedProgram
    reported: tuple[str, ...]
    outputs: tuple[str, ...]
    expected: tuple[tuple[str, str], ...]
    training: bool
    plain: bool
    changes: tuple[Change, ...] = ()
    switched: bool = False

    @property
    def changes_parameters(self) -> bool:
        return _changes_parameters(self.exported)

    @property
    def nodes(self) -> list[Node]:
        return list(self.exported.graph.nodes)


def export(module: nn.Module, loss: AnyFunction, batch: Batch) -> Program:
    """Trace the module, in the mode it is in, together with the loss."""
    with tracing() as trace:
        step = Step(module, loss, batch, trace)
        refuse_backward_hooks(step)
        try:
            exported = _traced(step, batch)
            if step.findings.changes and not _switches(module, exported):
                again = Step(module, loss, batch, trace)
                moving = _moving(again, batch, step.findings.changes)
                state.refuse_changes(moving, lambda: _differs(again, batch, exported))
            _refuse_hidden_write(exported)
            detach_no_grad(exported)
            exported = exported.run_decompositions(decompositions())
            spread_hooks(exported.graph)
            if module.training:  # in tests, a change that is made once may be followed
                state.refuse_written(step, exported)
            failure = None
        except PurineError:
            raise
        except Exception as raised:
            failure = raised.error if isinstance(raised, DependsOnValues) else raised
    if failure is not None:
        state.refuse_written_constant(step, failure)
        refuse_failing(module, loss, batch)
        raise untraced(module, failure) from failure
    findings = step.findings
    return Program(
        exported,
        findings.reported,
        findings.outputs,
        findings.expected,
        module.training,
        not trace.reads_mode and has_plain_modes(module, exported),
        tuple(findings.changes),
    )


@contextmanager
def left_behind(changes: Sequence[Change]) -> Iterator[None]:
    """Modules with the attributes that a trace left."""
    before = [(change.part, dict(change.part.__dict__)) for change in changes]
    for change in changes:
        change.part.__dict__[change.name] = change.after
    try:
        yield
    finally:
        for part, attributes in reversed(before):
            part.__dict__.clear()
            part.__dict__.update(attributes)


def _changes_parameters(exported: ExportedProgram) -> bool:
    specs = exported.graph_signature.output_specs
    return any(spec.kind.name == "PARAMETER_MUTATION" for spec in specs)


def _switches(module: nn.Module, exported: ExportedProgram) -> bool:
    """Whether a forward in test mode writes to parameters, such as once after training."""
    return not module.training and _changes_parameters(exported.run_decompositions({}))


def _traced(step: Step, batch: Batch) -> ExportedProgram:
    """The exported program of a step; modules keep the attributes that they have."""
    attributes = state.Attributes(step)
    with step.findings.trace.exporting():
        try:
            return torch.export.export(step, batch.values, strict=False)
        finally:
            attributes.restore()


def _moving(step: Step, batch: Batch, changes: Sequence[Change]) -> list[Change]:
    """The changes but for tensors that are the same every time, such as a mask that is cached.

    Such a tensor depends on no input and no state; in test mode, where states do not change, it
    may depend on these.
    """
    if not any(state.tensors_of(change.after) for change in changes):
        return list(changes)
    step.findings.shows_changes = True
    try:
        exported = _traced(step, batch)
    finally:
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
        if not state.holds_tensors_alone(change.after) or not varying.isdisjoint(before):
            moving.append(change)
    return moving


def _differs(step: Step, batch: Batch, known: ExportedProgram) -> bool:
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


def _refuse_hidden_write(exported: ExportedProgram) -> None:
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
