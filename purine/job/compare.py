"""How two runs differ: in their settings, their numbers and their time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from purine.errors import ConfigError
from purine.job.folder import RunFolder
from purine.job.history import History, differing
from purine.trace.summary import summary
from purine.trace.trace import Trace

__all__ = ["Comparison", "KindTimes", "Parting", "compare"]


@dataclass(frozen=True, slots=True)
class Parting:
    """The first iteration whose losses differ, among those that both runs logged."""

    iteration: int
    losses: tuple[float, float]


@dataclass(frozen=True, slots=True)
class KindTimes:
    """Nanoseconds of the ops of a kind in an iteration of each run."""

    kind: str
    times: tuple[float, float]


@dataclass(frozen=True)
class Comparison:
    """Two runs side by side.

    `common` counts the iterations of which both logged a loss; `parting` is None if these are equal
    in every bit. `kinds` and `steps` (nanoseconds per iteration) need the traces of both.
    """

    first: History
    second: History
    settings: Mapping[str, tuple[object, object]]
    numbers: Mapping[str, tuple[float | None, float | None]]
    common: int
    parting: Parting | None
    kinds: Sequence[KindTimes] = ()
    steps: tuple[float, float] | None = None


def compare(first: History, second: History) -> Comparison:
    """Compare two runs."""
    if first.path.resolve() == second.path.resolve():
        what, expected = "both are the same run", "the folders of two runs"
        raise ConfigError(what, expected, str(first.path), "name another one", where=second.path)
    names = differing((first, second))
    losses, others = (dict(history.points("loss")) for history in (first, second))
    common = [iteration for iteration in losses if iteration in others]
    apart = next((at for at in common if losses[at] != others[at]), None)
    parting = None if apart is None else Parting(int(apart), (losses[apart], others[apart]))
    kinds, steps = _kinds(first, second)
    return Comparison(
        first,
        second,
        {name: (first.options.get(name), second.options.get(name)) for name in names},
        _numbers(first, second),
        len(common),
        parting,
        kinds,
        steps,
    )


def _numbers(*pair: History) -> dict[str, tuple[float | None, float | None]]:
    one, two = pair
    return {
        "iterations": (one.iterations, two.iterations),
        "loss": (one.loss, two.loss),
        "test loss": (one.test("test_loss"), two.test("test_loss")),
        "test accuracy": (one.test("test_accuracy"), two.test("test_accuracy")),
        "images/s": (one.speed, two.speed),
        "seconds": (_seconds(one), _seconds(two)),
    }


def _seconds(history: History) -> float | None:
    points = history.points("seconds")
    return points[-1][1] if points else None


def _kinds(*pair: History) -> tuple[Sequence[KindTimes], tuple[float, float] | None]:
    """The times by kind, the largest differences first; empty unless both runs have a trace."""
    files = [RunFolder(history.path).trace_file for history in pair]
    if not all(file.is_file() for file in files):
        return (), None
    one, two = (summary(Trace.load(file)) for file in files)
    if not (one.iterations and two.iterations):
        return (), None
    mine, theirs = (
        {row.kind: row.total / each.iterations for row in each.kinds} for each in (one, two)
    )
    kinds = [
        KindTimes(kind, (mine.get(kind, 0.0), theirs.get(kind, 0.0)))
        for kind in dict.fromkeys((*mine, *theirs))
    ]
    kinds.sort(key=lambda row: -abs(row.times[0] - row.times[1]))
    return kinds, (one.iteration_time, two.iteration_time)
