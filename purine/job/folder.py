"""The folder of a run: its files, and how they are written.

Invariant: every file is complete at any moment, and the metrics are complete except for the last
line, which is removed when the run is resumed. A new run writes `config.yaml` last, so a folder
that has it can be resumed.
"""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from safetensors.torch import save
from torch import Tensor

from purine.data.prepare import MEAN_IMAGE
from purine.errors import CheckpointError, ConfigError
from purine.files import expanded, listing, put_in_place, unreadable, write_whole
from purine.graph import Graph, load_yaml, save_yaml
from purine.job.caffe import is_prototxt
from purine.job.config import Given, Job, merge
from purine.job.file import job_text, missing_keys, read_options
from purine.runtime.checkpoint import latest
from purine.runtime.worker_states import RECORD

__all__ = ["FollowerFolder", "Meeting", "RunFolder"]

_Row: TypeAlias = dict[str, Any]  # of the metrics; "iteration" is a whole number
_NAME_BYTES = 255  # the longest name of a file on usual file systems


class Meeting(NamedTuple):
    """Where workers join a job: the server's store, and the transport that the job uses."""

    address: str
    port: int
    transport: str


class _File:
    """A file of the run, as an attribute of its folder."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, folder: RunFolder, owner: type[RunFolder]) -> Path:
        return folder.path / self.name


@dataclass(frozen=True)
class RunFolder:
    """A folder with a run in it."""

    path: Path

    config_file = _File("config.yaml")
    net_file = _File("net.yaml")
    test_net_file = _File("test_net.yaml")
    solver_file = _File("solver.prototxt")
    start_file = _File("start.safetensors")
    mean_file = _File("mean.safetensors")
    metrics_file = _File("metrics.jsonl")
    summary_file = _File("summary.json")
    trace_file = _File("trace.json")
    record_file = _File(RECORD)
    meeting_file = _File("meeting.json")
    checkpoints = _File("checkpoints")

    @classmethod
    def create(
        cls,
        job: Job,
        net: Graph,
        *,
        test_net: Graph | None = None,
        values: Mapping[str, Tensor] | None = None,
    ) -> RunFolder:
        """Create the folder of a new run, with the job, its nets and a Caffe solver in it.

        `values` are the values of states that do not start from their fillers.
        """
        solver = Path(job.solver).read_bytes() if is_prototxt(job.solver) else None
        with _os_errors(job.out or "runs"):
            folder = cls.at(_free_folder(job) if job.out is None else job.out)
            folder.refuse_run()
            folder.path.mkdir(parents=True, exist_ok=True)
            save_yaml(net, folder.net_file)
            if test_net is not None:
                save_yaml(test_net, folder.test_net_file)
            if solver is not None:
                folder.solver_file.write_bytes(solver)
            weights = dict(values or {})
            mean = weights.pop(MEAN_IMAGE, None)
            if mean is not None:
                write_whole(folder.mean_file, save({MEAN_IMAGE: mean}))
            if weights:
                write_whole(folder.start_file, save(weights))
            folder.write_config(job)
        return folder

    @classmethod
    def at(cls, path: str | Path) -> RunFolder:
        """The folder at a path, whatever is there."""
        if not str(path):
            remedy = "write for example --out runs/a, or leave --out out"
            what, expected = "the path of the run's folder is empty", "the path of a folder"
            raise ConfigError(what, expected, "''", remedy)
        folder = cls(expanded(path))
        try:
            if any(len(os.fsencode(part)) > _NAME_BYTES for part in folder.path.parts):
                raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
            os.stat(folder.config_file)
        except (FileNotFoundError, NotADirectoryError):
            pass
        except (OSError, ValueError) as error:  # too long, not permitted, or no path at all
            what = "the folder of the run cannot be used"
            expected = "the path of a folder that can be read and written"
            remedy = "choose another folder with --out"
            raise unreadable(ConfigError, path, error, expected, what, remedy) from error
        return folder

    @classmethod
    def existing(cls, path: str | Path) -> RunFolder:
        """The folder of a run that was started before."""
        folder = cls.at(path)
        if not folder.config_file.is_file():
            raise folder._no_run()
        return folder

    def refuse_run(self) -> None:
        """Raise `ConfigError` if a run is in the folder already."""
        taken = self._taken()
        if self._has_no_job():
            raise self._without_job("a new or an empty folder")
        if taken or (self.path.exists() and not self.path.is_dir()):
            remedy = "choose another folder"
            if self.config_file.is_file():
                remedy = "go on with it: --resume; or choose another folder"
            elif taken:
                remedy = "choose another folder; without config.yaml this one cannot go on"
            what = "there is a run in this folder already" if taken else "this is not a folder"
            expected, found = "a new or an empty folder", ", ".join(taken) or "a file"
            raise ConfigError(what, expected, found, remedy, where=self.path)

    def _taken(self) -> list[str]:
        names = [item.name for item in vars(RunFolder).values() if isinstance(item, _File)]
        return [name for name in names if (self.path / name).exists()]

    def _has_no_job(self) -> bool:
        """Whether there are checkpoints but no job: `Run.save` leaves such a folder."""
        files = (self.config_file, self.net_file)
        return self.newest_checkpoint() is not None and not any(file.exists() for file in files)

    def _without_job(self, expected: str) -> ConfigError:
        what = "this folder holds checkpoints that a Python run saved, without its job"
        remedy = f"load it in Python with Run.load({str(self.path)!r}); "
        remedy += "a run of `purine train` needs another --out"
        return ConfigError(what, expected, ", ".join(self._taken()), remedy, where=self.path)

    def _no_run(self) -> ConfigError:
        expected = "a folder that `purine train --out` wrote, with config.yaml"
        if self._has_no_job():
            return self._without_job(expected)
        found = "a file" if self.path.exists() else "nothing"
        found = listing(self.path) if self.path.is_dir() else found
        start = f"start a run there: purine train --out {shlex.quote(str(self.path))}"
        start = "start a run with another --out" if self._taken() else start
        what, remedy = "there is no run in this folder", f"check the path, or {start}"
        return ConfigError(what, expected, found, remedy, where=self.path)

    def read_config(self) -> Job:
        """The job of the run, with `out` and what its own files hold set to this folder."""
        options = read_options(self.config_file)
        missing = missing_keys(options)
        if missing:
            raise ConfigError(
                "the job of this run is not complete",
                where=self.config_file,
                expected="every option that the run was started with, as `purine train` wrote it",
                found=f"no {', '.join(missing)}",
                remedy="put the file back as it was, or write the missing lines again; "
                "otherwise start another run with another --out",
            )
        return self._with_copies(merge(options, {"out": str(self.path)}))

    def write_config(self, job: Job) -> None:
        """Write the job so that it repeats the run: files that it names are the copies here."""
        if Path(job.net).suffix in (".yaml", ".yml", ".prototxt"):
            job = replace(job, net=str(self.net_file.resolve()))
        _write_text(self.config_file, job_text(self._with_copies(job)))

    def _with_copies(self, job: Job) -> Job:
        copies = {"test_net": self.test_net_file, "solver": self.solver_file}
        copies |= {"weights": self.start_file, "mean_file": self.mean_file}
        paths: Given = {n: str(file.resolve()) for n, file in copies.items() if file.is_file()}
        return replace(job, **paths)

    def read_net(self) -> Graph:
        """The net of the run."""
        return load_yaml(self.net_file)

    def read_test_net(self) -> Graph | None:
        """The net that measures, if the run has a separate one."""
        return load_yaml(self.test_net_file) if self.test_net_file.is_file() else None

    def write_summary(self, summary: Mapping[str, object]) -> None:
        """Write the results of the run."""
        _write_text(self.summary_file, json.dumps(_plain(summary), indent=2) + "\n")

    def write_meeting(self, meeting: Meeting) -> None:
        """Write the address at which workers may join."""
        _write_text(self.meeting_file, json.dumps(meeting._asdict()) + "\n")

    def read_meeting(self) -> Meeting:
        """The address at which workers may join the job in this folder."""
        what, remedy = "no job runs in this folder that workers can join", "see purine status"
        expected = "a running job of workers on several hosts"
        if not (self.is_running() and self.meeting_file.is_file()):
            raise ConfigError(what, expected, "none", remedy, where=self.path)
        try:
            told = json.loads(self.meeting_file.read_text())
            return Meeting(str(told["address"]), int(told["port"]), str(told["transport"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise unreadable(ConfigError, self.meeting_file, error, expected, what) from error

    def append_metrics(self, row: Mapping[str, object]) -> None:
        """Add one line to the metrics file."""
        with _os_errors(self.metrics_file), open(self.metrics_file, "ab") as file:
            file.write(json.dumps(_plain(row)).encode() + b"\n")

    def flush_metrics(self) -> None:
        """Wait until the metrics are on disk: a checkpoint has to come after them."""
        if self.metrics_file.exists():
            with _os_errors(self.metrics_file), open(self.metrics_file, "rb") as file:
                os.fsync(file.fileno())

    def read_metrics(self) -> list[_Row]:
        """All rows of the metrics; a last line that was cut short is left out."""
        what = "the metrics cannot be read"
        try:
            lines = self.metrics_file.read_bytes().split(b"\n")[:-1]
        except FileNotFoundError:
            return []
        except OSError as error:
            expected = "a file with a JSON object on each line"
            remedy = "put the file back as it was, or move what is there away"
            path = self.metrics_file
            raise unreadable(ConfigError, path, error, expected, what, remedy) from error
        rows = []
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
                assert type(row["iteration"]) is int
                assert "test_loss" not in row or row.keys() >= {"epoch", "test_accuracy"}
            except (ValueError, KeyError, TypeError, AssertionError):
                expected = 'a JSON object with "iteration"; that of a test complete'
                where, found = f"{self.metrics_file}:{number}", repr(line[:80])
                remedy = "correct or remove this line"
                raise ConfigError(what, expected, found, remedy, where=where) from None
            rows.append(row)
        return rows

    def cut_metrics(self, iteration: int) -> list[_Row]:
        """Remove the rows after `iteration`, and return the rows that stay."""
        rows = [row for row in self.read_metrics() if row["iteration"] <= iteration]
        if self.metrics_file.exists():
            _write_text(self.metrics_file, "".join(f"{json.dumps(row)}\n" for row in rows))
        return rows

    def refuse_lost_checkpoints(self) -> None:
        """Raise `CheckpointError` if the run is complete and its checkpoints are gone."""
        if self.summary_file.exists() and self.newest_checkpoint() is None:
            what = "the run is complete, and its checkpoints are gone"
            expected = "checkpoints/<iteration> to go on from"
            found = f"{self.summary_file.name}, and no checkpoint"
            again = f"purine train {shlex.quote(str(self.config_file))}"
            remedy = f"put the folder checkpoints back, or train again into another folder: {again}"
            raise CheckpointError(what, expected, found, remedy, where=self.path)

    def newest_checkpoint(self) -> Path | None:
        """The folder of the newest checkpoint."""
        return latest(self.path)

    def kept_text(self) -> str:
        """The end of a message about a run that failed: the checkpoint that remains."""
        newest = self.newest_checkpoint()
        return "" if newest is None else f"; the checkpoint {newest} is intact"

    def is_running(self) -> bool:
        """Whether a process trains in this folder; also where the file system has no locks."""
        try:
            with open(self.path / ".lock", "rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        return False

    @contextmanager
    def only_writer(self) -> Iterator[None]:
        """Keep other processes from training in this folder; the lock ends with this process."""
        with _os_errors(self.path):
            lock = open(self.path / ".lock", "ab")  # noqa: SIM115
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                what, found = "another process is training in this folder", "a lock held by another"
                expected, remedy = "one process for a run", "wait for it, or choose another folder"
                raise ConfigError(what, expected, found, remedy, where=self.path) from None
            except OSError:
                pass  # no file locks here; saving a checkpoint warns about it
            for draft in self.path.glob(".*.tmp"):  # left behind by a process that was killed
                draft.unlink(missing_ok=True)
            yield


class FollowerFolder(RunFolder):
    """The folder of a run on the other hosts: the first host writes, they only read."""

    def write_summary(self, summary: Mapping[str, object]) -> None:
        """The first host writes it."""

    def append_metrics(self, row: Mapping[str, object]) -> None:
        """The first host does."""

    def flush_metrics(self) -> None:
        """The first host does."""

    def cut_metrics(self, iteration: int) -> list[_Row]:
        return []

    @contextmanager
    def only_writer(self) -> Iterator[None]:
        yield


def _write_text(path: Path, text: str) -> None:
    with _os_errors(path):
        put_in_place(path, text)


def _free_folder(job: Job) -> Path:
    """Create `runs/<net>-<data>-<number>`, with the first number that is free."""
    names = (Path(job.net).stem, Path((job.data or "").partition(":")[0]).stem)
    stem = "-".join(re.sub(r"[^A-Za-z0-9._-]+", "-", name) for name in names)
    number = 1
    while True:
        path = Path("runs") / f"{stem}-{number}"
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            number += 1
        else:
            return path


def _plain(values: Mapping[str, object]) -> dict[str, object]:
    """The values with null for numbers that JSON cannot write."""
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in values.items()
    }


@contextmanager
def _os_errors(path: str | Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        what, expected = "cannot write to the folder of the run", "a folder that can be written"
        remedy = "choose another folder with --out, or free space"
        raise unreadable(ConfigError, path, error, expected, what, remedy) from error
