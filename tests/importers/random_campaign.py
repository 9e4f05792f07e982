"""Random modules against plain PyTorch: every way to train them must give its numbers.

A module is imported once and trained for a few steps: as it is, at another batch size, and under
schemes that cut the batch or the net. What differs from PyTorch on the whole batch, fails in a
kernel, or raises an exception that is not ours, is a bug. A refusal by name is none.
"""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import purine as pu
from purine.analysis.infer import with_batch
from purine.analysis.sample_rules import is_batch_norm
from purine.data import ArraySource, DataSet, Reader
from purine.errors import PurineError, RunError
from purine.graph import Graph
from purine.importers.torch import Imported, from_torch
from purine.parallel import replicate
from purine.recipe import compose
from tests.importers.random_modules import Draft, Loaded, load

__all__ = ["SCHEMES", "Outcome", "compare"]

STEPS = 3
EXAMPLE, WHOLE = 4, 16
"""Batch sizes. Those of all parts are among 4, 8 and 16: every further one takes time to trace."""
RATE, MOMENTUM = 0.02, 0.9
TOLERANCE = 1e-9
_TARGETS = ("t", "u")
_DRAWING = ("Dropout", "RandomExponential", "RandomIntegers", "RandomMask", "RandomNormal")
_RANDOM = frozenset(
    f"{prefix}{kind}" for kind in (*_DRAWING, "RandomUniform") for prefix in ("", "sized.")
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a way of training compares: `same`, `refused`, `skipped`, `different` or `failed`."""

    sort: str
    reason: str = ""

    @property
    def is_bug(self) -> bool:
        return self.sort in ("different", "failed")


def _solver(graph: Graph) -> Graph:
    return pu.solvers.sgd(graph, lr=RATE, momentum=MOMENTUM)


def _step(net: Graph, batch: int) -> Graph:
    return _solver(pu.backward(with_batch(net, batch)))


def _composed(net: Graph, devices: int, **settings: Any) -> Graph:
    whole, places = with_batch(net, WHOLE), f"cpu:0-{devices - 1}"
    return compose(whole, solver=_solver, devices=places, batch_norm="synchronised", **settings)


def _replicas(net: Graph, sizes: Sequence[int]) -> Graph:
    steps = [_step(net, size) for size in sizes]
    return replicate(steps, f"cpu:0-{len(sizes) - 1}", batch_norm="synchronised")


SCHEMES: Mapping[str, Callable[[Graph], Graph]] = {
    "replicas": lambda net: _composed(net, 2, data=2),
    "uneven": lambda net: _replicas(net, (8, 4, 4)),
    "accumulated": lambda net: pu.parallel.accumulate(_step(net, WHOLE // 4), 4),
    "pipeline": lambda net: _composed(net, 2, pipeline=2, micro=2),
    "grid": lambda net: _composed(net, 4, data=2, pipeline=2, micro=2),
    "shards": lambda net: _composed(net, 2, model=2),
}
"""Ways to train a net with the whole batch, by name."""

_IN_MICRO_BATCHES = frozenset({"accumulated", "pipeline", "grid"})


@dataclass(frozen=True, slots=True)
class Trained:
    """What training gave: reported numbers by step, values by name, and numbers of the test."""

    reported: list[dict[str, float]]
    values: dict[str, Tensor]
    tested: list[dict[str, float]]


def compare(draft: Draft, schemes: Sequence[str] = tuple(SCHEMES)) -> dict[str, Outcome]:
    """The outcome of each way to train a module."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _Campaign(draft).outcomes(schemes)


class _Campaign:
    """One module, the data it is trained with and what PyTorch makes of it."""

    def __init__(self, draft: Draft) -> None:
        self.name = f"<random module {draft.seed}>"
        self.source = draft.source()
        self.twice = draft.targets[:1] == (draft.sample,)
        self.targets = _TARGETS[: len(draft.targets)]
        names = ("x", *self.targets)
        generator = torch.Generator().manual_seed(draft.seed)
        self.data = {
            batch: DataSet(
                "random",
                ArraySource(*self.load().data(STEPS * batch, generator), names=names),
                ArraySource(*self.load().data(count, generator), names=names),
            )
            for batch, count in ((EXAMPLE, EXAMPLE), (WHOLE, WHOLE // 2))
        }
        self.expected: dict[int, Trained] = {}

    def load(self) -> Loaded:
        return load(self.source, self.name)

    def outcomes(self, schemes: Sequence[str]) -> dict[str, Outcome]:
        found: dict[str, Outcome] = {}
        imported = self._tried(found, "import", self.imported)
        if imported is None:
            return found
        kinds = {op.kind for op in imported.net.ops.values()}
        if _RANDOM.isdisjoint(kinds):
            for batch in (EXAMPLE, WHOLE):
                self.expected[batch] = self.by_torch(batch)
        else:
            self.expected[WHOLE] = self.expected[EXAMPLE] = Trained([], {}, [])
        found |= self.compared(imported, "serial", lambda net: _step(net, EXAMPLE), EXAMPLE)
        found |= self.compared(imported, "batch", lambda net: _step(net, WHOLE), WHOLE)
        for name in schemes:
            if name in _IN_MICRO_BATCHES and _has_batch_norm(imported.net):
                found[name] = Outcome("skipped", "batch norm sees micro-batches by themselves")
            else:
                found |= self.compared(imported, name, SCHEMES[name], WHOLE)
        return found

    def imported(self) -> Imported:
        made = self.load()
        x, *targets = made.data(EXAMPLE, torch.Generator().manual_seed(1))
        example = (x, x, *targets[1:]) if self.twice else (x, *targets)
        return from_torch(made.net, made.loss, example, inputs=("x",), targets=self.targets)

    def compared(
        self, imported: Imported, name: str, scheme: Callable[[Graph], Graph], batch: int
    ) -> dict[str, Outcome]:
        found: dict[str, Outcome] = {}
        serial = name in ("serial", "batch")
        trained = self._tried(found, name, lambda: self.by_purine(imported, scheme, batch, serial))
        if trained is None:
            return found
        expected = self.expected[batch]
        if not expected.reported and serial:  # it draws random numbers
            expected = self.expected[batch] = trained
        wrong = _difference(trained, expected)
        if wrong is not None and wrong[0] < self.unsteadiness(batch):
            found[name] = Outcome("skipped", "ill-conditioned")
        elif wrong is not None:
            found[name] = Outcome("different", wrong[1])
        else:
            found[name] = Outcome("same")
        return found

    def _tried(self, found: dict[str, Outcome], name: str, call: Callable[[], Any]) -> Any:
        """What a call gives; None, and its outcome in `found`, where it raises."""
        try:
            return call()
        except RunError as error:
            found[name] = Outcome("failed", f"{type(error).__name__}: {error}")
        except PurineError as error:
            found[name] = Outcome("refused", _in_short(error))
        except Exception:
            found[name] = Outcome("failed", traceback.format_exc())
        return None

    def by_purine(
        self, imported: Imported, scheme: Callable[[Graph], Graph], batch: int, test: bool
    ) -> Trained:
        samples = self.data[batch].test
        assert samples is not None
        graph = with_batch(imported.test, len(samples))
        with pu.Run(
            scheme(imported.net), data=self.data[batch], seed=0, threads=1, share_cores=True
        ) as run:
            run.set_states(imported.values)
            tested = [run.evaluate(graph)] if test else []
            results = list(run.steps(STEPS))
            reported = [{name: float(v) for name, v in r.outputs.items()} for r in results]
            tested += [run.evaluate(graph)] if test else []
            return Trained(reported, imported.state_dict(run), tested)

    def by_torch(self, batch: int, perturbed: bool = False) -> Trained:
        """PyTorch's own loop over the samples that a run reads."""
        made, data = self.load(), self.data[batch]
        net = made.net
        if perturbed:
            with torch.no_grad():
                for parameter in net.parameters():
                    parameter.mul_(1 + 1e-12 * torch.rand_like(parameter))
                    parameter.add_(1e-14 * torch.rand_like(parameter))
        solver = torch.optim.SGD(net.parameters(), lr=RATE, momentum=MOMENTUM)
        reader = Reader(data.train, batch=batch, seed=0, shuffle=True)
        tested, reported = [self.tested(made, data)], []
        for step in range(STEPS):
            x, *targets = reader.read(step)
            found = _mapping(made.loss(net(x), *targets))
            solver.zero_grad()
            found["loss"].backward()
            solver.step()
            reported.append({name: float(value) for name, value in found.items()})
        return Trained(reported, dict(net.state_dict()), [*tested, self.tested(made, data)])

    def tested(self, made: Loaded, data: DataSet) -> dict[str, float]:
        """The test numbers; the module stays as it is."""
        assert data.test is not None
        net = made.net
        before = {name: value.clone() for name, value in net.state_dict().items()}
        with _testing(net), torch.no_grad():
            count = len(data.test)
            x, *targets = Reader(data.test, batch=count, seed=0, shuffle=False).read(0)
            found = _mapping(made.loss(net(x), *targets))
        net.load_state_dict(before)
        return {name: float(value) for name, value in found.items()}

    def unsteadiness(self, batch: int) -> float:
        """How far PyTorch's own numbers move where parameters move by 1e-12 of them and 1e-14."""
        if not self.expected[batch].reported:
            return 0.0
        found = _difference(self.by_torch(batch, perturbed=True), self.expected[batch], 0.0)
        return 0.0 if found is None else found[0]


@contextmanager
def _testing(net: nn.Module) -> Iterator[None]:
    modes = {part: part.training for part in net.modules()}
    net.eval()
    try:
        yield
    finally:
        for part, training in modes.items():
            part.training = training


def _mapping(found: Any) -> dict[str, Tensor]:
    return dict(found) if isinstance(found, dict) else {"loss": found}


def _has_batch_norm(net: Graph) -> bool:
    """Whether micro-batches are normalised by themselves, and hand their statistics on."""
    return any(map(is_batch_norm, net.ops.values()))


def _difference(
    found: Trained, expected: Trained, tolerance: float = TOLERANCE
) -> tuple[float, str] | None:
    """The largest relative difference and its place, where one is beyond the tolerance."""
    pairs: list[tuple[str, Any, Any]] = []
    for step, (mine, theirs) in enumerate(zip(found.reported, expected.reported, strict=True)):
        pairs += [(f"{name} of step {step}", mine.get(name), theirs[name]) for name in theirs]
    for when, mine, theirs in zip(("before", "after"), found.tested, expected.tested, strict=False):
        pairs += [(f"test {name} {when}", mine.get(name), theirs[name]) for name in theirs]
    pairs += [(name, found.values.get(name), value) for name, value in expected.values.items()]
    worst: tuple[float, str] | None = None
    for name, mine, theirs in pairs:
        distance = float("inf") if mine is None else _distance(mine, theirs)
        if not distance <= tolerance and (worst is None or not distance <= worst[0]):
            worst = distance, f"{name}: {_text(mine)}, and {_text(theirs)} in PyTorch"
    return worst


def _distance(mine: Any, theirs: Any) -> float:
    one, two = (torch.as_tensor(value, dtype=torch.float64) for value in (mine, theirs))
    if one.shape != two.shape:
        return float("inf")
    if one.numel() == 0 or torch.equal(one.nan_to_num(), two.nan_to_num()):
        return 0.0
    return float((one - two).abs().max() / (two.abs().max() + 1e-2))


def _text(value: Any) -> str:
    if isinstance(value, Tensor) and value.numel() > 4:
        return f"{value.flatten()[:4].tolist()}..."
    return str(value.tolist() if isinstance(value, Tensor) else value)


def _in_short(error: PurineError) -> str:
    """What was refused, without what differs from module to module."""
    found = "" if error.found is None else f" ({error.found})"
    return f"{error.what}{found}"
