"""What a run has written: options, metrics, results.

Nothing is computed and no net is read, so many runs are read in a moment. For a run that is still
training it is what it has written so far.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from purine.arguments import checked
from purine.errors import ConfigError
from purine.files import listing, unreadable
from purine.job.folder import RunFolder
from purine.job.options import OPTIONS

__all__ = ["History", "differing", "find_runs", "read_history", "short_names"]

_DEEPEST = 8  # folders below the one that is searched


@dataclass(frozen=True)
class History:
    """A run as its folder shows it; `trained` and `tested` are the rows of the metrics.

    `ended` is whether it trained to its end, `running` whether a process trains in its folder.
    """

    path: Path
    options: Mapping[str, object]
    trained: Sequence[Mapping[str, float]]
    tested: Sequence[Mapping[str, float]]
    summary: Mapping[str, object] = field(default_factory=dict)
    running: bool = False

    @property
    def ended(self) -> bool:
        return bool(self.summary)

    @property
    def state(self) -> str:
        """The state of the run in one word: `finished`, `running` or `stopped`."""
        return "running" if self.running else "finished" if self.ended else "stopped"

    @property
    def iterations(self) -> int:
        """The iterations that the metrics know of."""
        return max((int(row["iteration"]) for row in (*self.trained, *self.tested)), default=0)

    @property
    def loss(self) -> float | None:
        """The last loss of training."""
        return next((row["loss"] for row in reversed(self.trained) if "loss" in row), None)

    @property
    def speed(self) -> float | None:
        """Samples a second, over all iterations."""
        whole = self.summary.get("images_per_second")
        if isinstance(whole, int | float):
            return float(whole)
        rates = [row["images_per_second"] for row in self.trained if "images_per_second" in row]
        return rates[-1] if rates else None

    @property
    def changed(self) -> datetime:
        """The time when the run last wrote a metric; when it began if there is none."""
        folder = RunFolder(self.path)
        files = (folder.metrics_file, folder.config_file)
        newest = next(file for file in files if file.exists())
        return datetime.fromtimestamp(newest.stat().st_mtime)

    def test(self, name: str) -> float | None:
        """The last `test_loss` or `test_accuracy`."""
        return next((row[name] for row in reversed(self.tested) if name in row), None)

    def points(self, name: str, across: str = "iteration") -> tuple[tuple[float, float], ...]:
        """The values of a metric of training, by iteration or by seconds."""
        rows = (row for row in self.trained if name in row and across in row)
        return tuple((row[across], row[name]) for row in rows)

    def test_points(self, name: str, across: str = "iteration") -> tuple[tuple[float, float], ...]:
        """The values of a metric of tests; its seconds are those of training until then."""
        rows = [row for row in self.tested if name in row]
        if across == "iteration":
            return tuple((row["iteration"], row[name]) for row in rows)
        clock = self.points("seconds")
        return tuple((_at(clock, row["iteration"]), row[name]) for row in rows) if clock else ()


def _at(clock: Sequence[tuple[float, float]], iteration: float) -> float:
    """The seconds at an iteration, interpolated."""
    before = (0.0, 0.0)
    for after in clock:
        if after[0] >= iteration:
            part = (iteration - before[0]) / ((after[0] - before[0]) or 1.0)
            return before[1] + part * (after[1] - before[1])
        before = after
    return before[1]


@checked
def read_history(path: Path | str) -> History:
    """The history of the run in a folder."""
    folder = RunFolder.existing(path)
    job = folder.read_config()
    options = {name: getattr(job, name) for name, item in OPTIONS.items() if item.recorded}
    whole = folder.read_metrics()
    rows = [_numbers(row) for row in whole]
    tests = ("test_loss" in row or "test_accuracy" in row for row in whole)
    tested = [row for row, is_test in zip(rows, tests, strict=True) if is_test]
    trained = [row for row in rows if "loss" in row or "lr" in row]
    summary = _summary(folder)
    complete = summary if summary.get("iterations") is not None else {}
    return History(folder.path, options, trained, tested, complete, folder.is_running())


def _numbers(row: Mapping[str, object]) -> dict[str, float]:
    """The numbers of a row; infinite and NaN values were written as null."""
    pairs = ((key, value) for key, value in row.items() if not isinstance(value, bool))
    return {key: value for key, value in pairs if isinstance(value, int | float)}


def _summary(folder: RunFolder) -> Mapping[str, object]:
    path = folder.summary_file
    try:
        summary = json.loads(path.read_text())
        if not isinstance(summary, dict):
            raise ValueError(f"a {type(summary).__name__}")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        expected = "the JSON object that `purine train` wrote"
        what, remedy = "the results of this run cannot be read", "put the file back as it was"
        raise unreadable(ConfigError, path, error, expected, what, remedy) from error
    return summary


@checked
def find_runs(root: Path | str) -> list[Path]:
    """The folders of the runs in a folder and below it, in order of their names.

    Hidden folders, links to folders, and the insides of runs are skipped.
    """
    folder = Path(root).expanduser()
    if not folder.is_dir():
        what, expected = "there are no runs here", "a folder with the folders of runs in it"
        remedy = "check the path"
        found = "a file" if folder.exists() else "nothing"
        raise ConfigError(what, expected, found, remedy, where=root)
    runs = list(_runs(folder, _DEEPEST))
    if not runs:
        what, expected = "there are no runs here", "folders that `purine train --out` wrote"
        remedy = f"check the path, or train one: purine train --out {folder / 'a'}"
        raise ConfigError(what, expected, listing(folder), remedy, where=root)
    return runs


def _runs(folder: Path, depth: int) -> Iterator[Path]:
    if RunFolder(folder).config_file.is_file():
        yield folder
        return
    try:
        entries = sorted(folder.iterdir()) if depth else []
    except PermissionError:
        return
    for entry in entries:
        if entry.is_dir() and not entry.is_symlink() and not entry.name.startswith("."):
            yield from _runs(entry, depth - 1)


def differing(histories: Sequence[History]) -> list[str]:
    """The options in which runs differ, in the order of the table of options.

    Paths of files are not compared if only the folder of the run itself differs.
    """

    def value(history: History, name: str) -> str:
        text = repr(history.options.get(name))
        return text.replace(str(history.path.resolve()), "")

    names = list(OPTIONS)
    return [name for name in names if len({value(history, name) for history in histories}) > 1]


def short_names(paths: Sequence[Path]) -> list[str]:
    """The paths without the folders that all have in common.

    >>> short_names([Path("runs/a/1"), Path("runs/b/1")])
    ['a/1', 'b/1']
    """
    parts = [path.parts for path in paths]
    common = 0
    while len(parts) > 1 and all(len(part) > common + 1 for part in parts):
        if len({part[common] for part in parts}) > 1:
            break
        common += 1
    if len(parts) == 1:
        return [paths[0].name or str(paths[0].resolve().name)]
    return ["/".join(part[common:]) for part in parts]
