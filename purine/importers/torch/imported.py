"""PyTorch modules as nets: the same parameters under the same names, trained to the same numbers.

A module and its loss are traced together, in training and in test mode. The graphs hold no values:
those of the module are in `values`, which a run is given.

    imported = from_torch(module, F.cross_entropy, (images, labels))
    step = purine.solvers.sgd(purine.backward(imported.net), lr=0.1)
    with purine.Run(step, data=data) as run:
        run.set_states(imported.values)
        ...
        run.evaluate(imported.test)
        imported.to_torch(run, module)

Shapes are those of the example. The batch size can be changed: `purine.analysis.infer.with_batch`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from purine.arguments import checked
from purine.errors import ConfigError, PurineError, in_a_line
from purine.graph import Builder, Graph
from purine.importers import HasStates
from purine.importers.torch import sizes
from purine.importers.torch.batch import MODULE, Batch, Nested, batch_of
from purine.importers.torch.export import Program, export
from purine.importers.torch.graph import Translation, add_state
from purine.importers.torch.modes import mode
from purine.importers.torch.sizes import Unfit
from purine.importers.torch.tracing import AnyFunction
from purine.placement.values import gather_values
from purine.registry.clock import ITERATION, SEED

__all__ = ["Imported", "from_torch"]


@dataclass(frozen=True)
class Imported:
    """A module as graphs, and the values its states have.

    `net` is to be trained, `test` measures; both report what the loss function gives. `values` are
    the first values of the states of `net`. `names` gives the state of each entry of the module's
    state dict: tied entries have one. `outputs` are the blobs of `test` that hold what the module
    returns, for `purine.inference`.
    """

    net: Graph
    test: Graph
    values: Mapping[str, Tensor]
    names: Mapping[str, str]
    outputs: tuple[str, ...]

    @checked
    def state_dict(self, run: HasStates) -> dict[str, Tensor]:
        """The values of a run as a state dict of the module; no two entries share memory.

        Values that the run has in shards are joined.
        """
        states = gather_values(run.graph, run.states())
        missing = [state for state in self.names.values() if state not in states]
        if missing:
            what = f"the run has no state {missing[0]!r}"
            expected = "a run of the net that was imported, or of one made of it"
            actual = f"states {', '.join(list(states)[:8])}"
            remedy = "train imported.net, and pass that run"
            raise ConfigError(what, blob=missing[0], expected=expected, found=actual, remedy=remedy)
        return {name: states[state].clone() for name, state in self.names.items()}

    @checked
    def to_torch(self, run: HasStates, module: nn.Module) -> None:
        """Write the values of a run into a module of the same form."""
        values = self.state_dict(run)
        try:
            module.load_state_dict(values)
        except RuntimeError as error:
            what = f"{type(module).__name__} does not take the values of the run"
            expected = "a module of the form that was imported"
            remedy = "pass the module that was imported, or one made in the same way"
            raise ConfigError(what, expected, in_a_line(error), remedy) from error


@checked
def from_torch(
    module: nn.Module,
    loss: AnyFunction,
    example: Nested,
    *,
    inputs: Sequence[str] | None = None,
    targets: Sequence[str] = ("label",),
) -> Imported:
    """Turn a module and a loss into a net that trains with the same numbers.

    `loss(outputs, *targets)` gives a scalar, or a mapping of scalars of which `loss` is minimised
    and all are reported. `example` is a batch: the module's arguments by position, then the
    targets; or a mapping, whose inputs are keyword arguments. `inputs` and `targets` name its
    items, and the blobs that are read from data in this order; nested items are named by their
    place, as in `data/0`.

    The `backward` of a `torch.autograd.Function` and hooks of tensors and parameters are the
    gradients of the net. Dropout draws by our randomness, so its numbers differ from torch's. Parts
    of the module that are in test mode while the rest trains stay so.

    `analysis.infer.with_batch` makes the graphs for another batch size; where the module depends
    on its size in ways that tracing cannot tell, it raises an error that names the op.

    >>> import torch
    >>> module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> example = torch.zeros(2, 4), torch.zeros(2, dtype=torch.int64)
    >>> imported = from_torch(module, nn.functional.cross_entropy, example)
    >>> sorted(imported.values)
    ['0.bias', '0.weight', '2.bias', '2.weight']
    """
    batch = batch_of(example, inputs, targets)
    builder = Builder()
    names: dict[str, str] = {}
    values: dict[str, Tensor] = {}
    first: dict[int, str] = {}
    parts = [(MODULE, module), *([("loss.", loss)] if isinstance(loss, nn.Module) else [])]
    for prefix, part in parts:
        for name, value in _tensors(part):
            own = name if part is module else prefix + name
            _check_tensor(own, value)
            state = names[prefix + name] = first.setdefault(id(value), own)
            if state == own:
                values[own] = value.detach().clone()
                add_state(builder, own, value, trainable=value.requires_grad)
    tracer = _Tracer(module, loss, batch, builder.graph(), names, {})
    trained = tracer.export(training=True)
    net = tracer.graph(trained, test=False)
    tested = trained if trained.plain else tracer.export(training=False)
    test = tracer.graph(tested, test=True)
    net, test = _following(tracer, net, test, once=trained.plain)
    constants = tracer.constants
    return Imported(
        _with_constants(net, constants),
        test,
        {**values, **{name: value.clone() for name, value in constants.items()}},
        {name: names[MODULE + name] for name in module.state_dict() if MODULE + name in names},
        tested.findings.outputs,
    )


@dataclass(frozen=True, slots=True)
class _Tracer:
    """Traces a module with one batch; `constants` are those of its graphs so far."""

    module: nn.Module
    loss: AnyFunction
    batch: Batch
    base: Graph
    names: Mapping[str, str]
    constants: dict[str, Tensor]

    def export(self, *, training: bool) -> Program:
        with mode(self.module, training=training):
            return export(self.module, self.loss, self.batch)

    def graph(self, program: Program, *, test: bool) -> Graph:
        return Translation(program, self.batch, self.base, self.names, self.constants, test).graph()


def _following(tracer: _Tracer, net: Graph, test: Graph, *, once: bool) -> tuple[Graph, Graph]:
    """The graphs of a module, made to follow the batch size by a trace with more samples.

    `once` says that one trace gave both. Where both modes need a trace, only the test graph is
    traced again if that tells enough: it is the quicker one.
    """
    batch = tracer.batch
    try:
        larger = replace(tracer, batch=sizes.enlarged(batch), constants={})
        program = larger.export(training=once)
        tested = larger.graph(program, test=True)
        other = None if once else sizes.counterpart(net, test, tested)
        if other is None:
            program = program if once else larger.export(training=True)
            other = larger.graph(program, test=False)
        sizes.check_constants(tracer.constants, larger.constants)
    except PurineError as error:
        detail = f": {error.found}" if error.found else ""
        unfit = Unfit(f"with other batch sizes {error.what}{detail}")
    except Unfit as error:
        unfit = error
    else:
        follow = sizes.follow_batch
        return follow(net, other, batch.names), follow(test, tested, batch.names)
    return sizes.fix_batch(net, batch.names, unfit), sizes.fix_batch(test, batch.names, unfit)


def _tensors(module: nn.Module) -> list[tuple[str, Tensor]]:
    return [
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ]


def _check_tensor(name: str, value: Tensor) -> None:
    if is_lazy(value):
        what = f"parameter {name!r} of the module has no shape yet"
        expected = "a module whose parameters have shapes and values"
        actual, remedy = "a lazy module that was not called", "call it once before: module(*inputs)"
    elif name in (SEED, ITERATION):
        what, actual = f"the module has a tensor called {name!r}", repr(name)
        expected = f"other names than {SEED} and {ITERATION}, which every run has"
        remedy = "rename it in the module"
    else:
        return
    raise ConfigError(what, blob=name, expected=expected, found=actual, remedy=remedy)


def _with_constants(net: Graph, constants: Mapping[str, Tensor]) -> Graph:
    """The net with the constants that only its test graph reads: a run's values reach both."""
    builder = Builder(net)
    for name, value in constants.items():
        if name not in builder.states:
            add_state(builder, name, value)
    return builder.graph()
