"""The status of the hosts of a running job: they answer a request in the run folder.

`ask` writes `status/request` with a random id. A thread in each host checks for it every second and
writes `status/HOST.json` with the same id. No port is opened; every process that may write into the
folder may ask. On SIGUSR1 a host prints its status on stderr.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType

from purine.arguments import check_fields
from purine.errors import ConfigError
from purine.files import put_in_place, read_bounded
from purine.graph import Graph
from purine.graph.names import copied_from
from purine.job.crew import Crew
from purine.runtime.exchange import Wait
from purine.runtime.run import Run

__all__ = ["TRAINS", "Answer", "Status", "answering", "ask", "status_of"]

TRAINS = "trains"
_LOOK = 1.0
"""Seconds between two looks for a request."""
_MOST = 8
"""Lines of a status."""
_LARGEST = 1 << 16
_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Status:
    """The status of a host: the number of complete iterations, and a line for each op or wait."""

    iteration: int
    does: tuple[str, ...]
    waits_for: tuple[str, ...] = ()
    """The hosts it waits for."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The last status that a host wrote; `fresh` if it answers this request, `age` in seconds."""

    host: str
    fresh: bool
    age: float | None = None
    status: Status | None = None


def status_of(doing: str, run: Run | Crew) -> Status:
    """The status of a run whose job is `doing` something."""
    activity = run.activity()
    hosts = tuple(dict.fromkeys(wait.peer for wait in activity.waits))
    if doing != TRAINS:
        return Status(activity.completed, (doing,), hosts)
    oldest = min((wait.iteration for wait in activity.waits), default=0)
    lines = [_line(run.graph, wait) for wait in activity.waits if wait.iteration == oldest]
    lines += [f"runs {op} on {lane}, iteration {at}" for at, op, lane in activity.running]
    if len(lines) > _MOST:
        lines = [*lines[: _MOST - 1], f"and {len(lines) - _MOST + 1} more"]
    return Status(activity.completed, tuple(lines) or ("computes",), hosts)


def _line(graph: Graph, wait: Wait) -> str:
    """A wait as a chain: op <- blob <- producer <- host."""
    name = wait.blob
    at = f"iteration {wait.iteration}"
    if wait.sort == "slot":
        return f"put {wait.channel.op} <- {name} <- free slot <- {wait.peer}, {at}"
    if wait.sort == "send":
        return f"sends {wait.channel.op} <- {name} -> {wait.peer}, {at}"
    readers = [op.name for op in graph.consumers.get(name, ())]
    reader = readers[0] if readers else wait.channel.op
    more = f" and {len(readers) - 1} more" if len(readers) > 1 else ""
    blob = copied_from(name)
    state = graph.states.get(blob)
    producer = graph.producers.get(blob if state is None else state.next)
    source = blob if producer is None else producer.name
    return f"{reader}{more} <- {name} <- {source} <- {wait.peer}, {at}"


@contextmanager
def answering(run: Path, host: str, status: Callable[[], Status]) -> Iterator[None]:
    """Answer requests for the status of this host until the block ends."""
    bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    ends = threading.Event()

    def ring(number: int, frame: FrameType | None) -> None:
        os.eventfd_write(bell, 1)

    def serve() -> None:
        answered = ""
        while not ends.is_set():
            rung = select.select([bell], [], [], _LOOK)[0]
            if ends.is_set():
                return
            if rung:
                os.eventfd_read(bell)
                with suppress(OSError, ValueError):
                    print(_text(host, status()), file=sys.stderr, flush=True)
            request = _request(run)
            if request and request != answered:
                answered = request
                answer = {"id": request, "time": time.time(), **asdict(status())}
                with suppress(OSError):  # whoever asks sees that there is no answer
                    put_in_place(run / "status" / f"{host}.json", json.dumps(answer) + "\n")

    main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGUSR1, ring) if main else None
    thread = threading.Thread(target=serve, name="status", daemon=True)
    thread.start()
    try:
        yield
    finally:
        if main:
            signal.signal(signal.SIGUSR1, signal.SIG_IGN if before is None else before)
        ends.set()
        os.eventfd_write(bell, 1)
        thread.join(_LOOK)
        if not thread.is_alive():
            os.close(bell)


def ask(run: Path, hosts: Sequence[str], *, seconds: float) -> list[Answer]:
    """Ask all hosts of the job that runs in a folder, and wait some seconds; raises OSError."""
    folder, request = run / "status", secrets.token_hex(16)
    folder.mkdir(mode=0o700, exist_ok=True)
    put_in_place(folder / "request", request)
    ends = time.monotonic() + seconds
    try:
        while True:
            known = {request, _request(run)}  # another program may have asked meanwhile
            answers = [_answer(folder, host, known) for host in hosts]
            if all(answer.fresh for answer in answers) or time.monotonic() > ends:
                return answers
            time.sleep(0.05)
    finally:
        if _request(run) == request:
            (folder / "request").unlink(missing_ok=True)


def _request(run: Path) -> str:
    """The id of the request in a run folder; empty if there is none."""
    try:
        text = read_bounded(run / "status" / "request", _LARGEST).decode("ascii", "replace")
    except OSError:
        return ""
    return text if _ID.fullmatch(text) else ""


def _answer(folder: Path, host: str, requests: set[str]) -> Answer:
    try:
        raw = json.loads(read_bounded(folder / f"{host}.json", _LARGEST))
        status = Status(raw["iteration"], tuple(raw["does"]), tuple(raw["waits_for"]))
        check_fields(status)
        fresh, age = raw["id"] in requests, max(0.0, time.time() - raw["time"])
    except (OSError, ValueError, KeyError, TypeError, ConfigError):
        return Answer(host, fresh=False)
    return Answer(host, fresh, age, status)


def _text(host: str, status: Status) -> str:
    lines = [f"status of {host}: iteration {status.iteration}, {status.does[0]}"]
    return "\n".join([*lines, *(f"  {line}" for line in status.does[1:])])
