"""A module and its loss as one function of the tensors of a batch, which is what is exported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import FunctionType

from torch import Tensor, nn
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from purine.errors import ConfigError
from purine.importers.torch.autograd import AutogradMode, hooked_parameters
from purine.importers.torch.batch import LOSS, OUTPUT, Batch, leaves_of
from purine.importers.torch.branches import Branches
from purine.importers.torch.layers import FUNCTIONS
from purine.importers.torch.packed import PACKING
from purine.importers.torch.rules import add_hook
from purine.importers.torch.state import Attributes, Buffers, Change, tensors_of
from purine.importers.torch.tracing import AnyFunction, Trace

__all__ = ["DependsOnValues", "Findings", "Step"]


class DependsOnValues(Exception):
    """Holds torch's error that a trace depends on values: seeing that, torch prints its graphs."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


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


class Step(nn.Module):
    """The module to export."""

    def __init__(self, module: nn.Module, loss: AnyFunction, batch: Batch, trace: Trace) -> None:
        super().__init__()
        self.module = module
        self.loss = _named_forward(loss)
        self.training = module.training
        self.rebuild = batch.rebuild
        self.findings = Findings(trace)
        self.hooks = hooked_parameters(self)

    def forward(self, *values: Tensor) -> tuple[Tensor, ...]:
        try:
            return self._results(values)
        except GuardOnDataDependentSymNode as error:
            raise DependsOnValues(error) from error

    def _results(self, values: Sequence[Tensor]) -> tuple[Tensor, ...]:
        findings = self.findings
        attributes, buffers = Attributes(self), Buffers(self)
        results = self._computed(values)
        buffers.write_back(findings.trace.assigned)
        findings.changes = attributes.changes(findings.trace.assigned)
        if findings.shows_changes:
            return tuple(v for change in findings.changes for v in tensors_of(change.after))
        return results

    def _computed(self, values: Sequence[Tensor]) -> tuple[Tensor, ...]:
        findings = self.findings
        with AutogradMode():
            for name, hooks in self.hooks.items():
                for hook in hooks:
                    add_hook(self.get_parameter(name), hook)
        arguments, keywords, targets = self.rebuild(values)
        branches = Branches({**FUNCTIONS, **PACKING})
        with findings.trace.forward(branches.greatest), branches:
            outputs = self.module(*arguments, **keywords)
            losses = self.loss(outputs, *targets)
        reported = _checked_losses(losses)
        leaves = [
            (name, value) for name, value in leaves_of(outputs, OUTPUT) if isinstance(value, Tensor)
        ]
        findings.reported = tuple(reported)
        findings.outputs = tuple(name for name, _ in leaves)
        findings.expected = tuple((item.where, item.code) for item in branches.expected)
        conditions = (item.condition for item in branches.expected)
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
        raise ConfigError(
            "the loss function gives no loss",
            expected=f"a scalar tensor, or a mapping of scalars with {LOSS!r} among them",
            found=", ".join(map(str, reported)) or "nothing",
            remedy=f"call one of the results {LOSS!r}",
        )
    scalars: dict[str, Tensor] = {}
    for name, value in reported.items():
        if not isinstance(value, Tensor) or value.ndim != 0:
            form = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
            what = f"the loss function gives {name!r}, which is no scalar"
            expected = "scalar tensors"
            remedy = "take the mean over the batch"
            raise ConfigError(what, expected=expected, found=f"{name}: {form}", remedy=remedy)
        scalars[name] = value
    return scalars
