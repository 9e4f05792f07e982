"""Metrics as TensorBoard's event files, by its own package (the extra `purine[tensorboard]`).

The files are a copy of metrics.jsonl; Purine never reads them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from purine.errors import ConfigError
from purine.files import unreadable

__all__ = ["FOLDER", "EventFiles", "refuse_missing"]

FOLDER = "tensorboard"
"""The folder of the event files in that of the run."""
_NO_VALUES = ("iteration", "epoch", "seconds")


class _Writer(Protocol):
    """The methods of torch's `SummaryWriter` that are used."""

    def add_scalar(self, tag: str, value: float, step: int) -> None: ...
    def flush(self) -> None: ...
    def close(self) -> None: ...


def refuse_missing() -> None:
    """Raise `ConfigError` if TensorBoard is not installed."""
    if find_spec("tensorboard") is None:
        what, expected = "TensorBoard is not installed", "the package tensorboard"
        remedy = "pip install 'purine[tensorboard]', or leave --tensorboard out"
        raise ConfigError(what, expected, "none", remedy)


class EventFiles:
    """Event files of a run that continues after `iteration`; events of later ones are voided."""

    def __init__(self, folder: Path, iteration: int) -> None:
        refuse_missing()
        writer = import_module("torch.utils.tensorboard").SummaryWriter  # takes a second
        later = iteration + 1 if iteration else None
        self._folder = folder / FOLDER
        with self._errors():
            self._writer: _Writer = writer(str(self._folder), purge_step=later)

    def add(self, row: Mapping[str, object]) -> None:
        """Write the numbers in a row of the metrics: of training, of a test, and of workers."""
        step = row["iteration"]
        assert isinstance(step, int)
        for name, value in row.items():
            if isinstance(value, int | float) and name not in _NO_VALUES:
                part, _, rest = name.partition("_")
                tag = f"test/{rest}" if part == "test" and rest else f"train/{name}"
                self._add(tag, value, step)
        workers = row.get("workers")
        for worker in workers if isinstance(workers, list) else []:
            for name, value in worker.items():
                if name != "worker" and isinstance(value, int | float):
                    self._add(f"worker{worker['worker']}/{name}", value, step)

    def _add(self, tag: str, value: float, step: int) -> None:
        with self._errors():
            self._writer.add_scalar(tag, value, step)

    def flush(self) -> None:
        """Bring everything to the files."""
        with self._errors():
            self._writer.flush()

    def close(self) -> None:
        with self._errors():
            self._writer.close()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            what, expected = "cannot write TensorBoard's files", "a folder that can be written"
            remedy = "free space there, or resume with --no-tensorboard"
            raise unreadable(ConfigError, self._folder, error, expected, what, remedy) from error
