"""The content of a live page of a running job: its document, its curves, the status of its hosts.

Everything comes from the folder of the run. Constant parts are computed once; the rest only when a
viewer asks, and then once for all viewers.
"""

from __future__ import annotations

import json
import threading
import time
from dataclasses import asdict
from pathlib import Path

from purine.errors import PurineError
from purine.job.folder import RunFolder
from purine.job.placing import hosts_of_job
from purine.job.status import Answer, ask
from purine.viewer.columns import Json
from purine.viewer.document import Part, document, of_run
from purine.viewer.overview import curves_of
from purine.viewer.page import page

__all__ = ["Watch"]

_ASK = 1.0
"""Seconds for which an answer of the hosts is good enough for all viewers."""
_SHARE = 0.01
"""The share of a core that reading the metrics may take: those of a long run take a second."""
_PATIENCE = 2.5
"""Seconds to wait for the answers of hosts, which look for a question every second."""


class Watch:
    """A running job. Any thread may ask."""

    ended = False

    def __init__(self, run: Path, token: str) -> None:
        self.folder = RunFolder(run)
        self.token = token
        self._job = self.folder.read_config()
        self._hosts = hosts_of_job(self._job)
        self._making = threading.Lock()
        self._asking = threading.Lock()
        self._reading = threading.Lock()
        self._curves: Json = None
        self._good_until = 0.0
        """When the metrics are read again."""
        self._last = False
        """Whether they were read after the end of the run."""
        self._part: Part | None = None
        self._made_of: int | None = None
        self._answers: list[Answer] = []
        self._answered = 0.0
        self._iteration = -1
        self._moved = time.monotonic()

    def page(self) -> bytes:
        """The page as it is now."""
        return page(self._content()).encode()

    def document(self) -> bytes:
        """The document of the page as it is now."""
        return json.dumps(self._content()).encode()

    def curves(self) -> Json:
        """The metrics so far, for all viewers alike; read the less often the longer that takes."""
        with self._reading:
            begun = time.monotonic()
            if begun >= self._good_until or self.ended != self._last:
                self._last, size = self.ended, self._size()
                self._curves = {"curves": curves_of(self._rows()), "rows": size}
                took = time.monotonic() - begun
                self._good_until = begun + max(_ASK, took / _SHARE)
            return self._curves

    def state(self) -> Json:
        """The status of the hosts, and whether the job continues."""
        answers = [] if self.ended else self._ask()
        known = [one.status.iteration for one in answers if one.status is not None]
        iteration = max(known, default=self._iteration)
        if iteration != self._iteration:
            self._iteration, self._moved = iteration, time.monotonic()
        hosts: list[Json] = [json.loads(json.dumps(asdict(answer))) for answer in answers]
        return {
            "rows": self._size(),
            "version": self._version(),
            "iteration": max(iteration, 0),
            "stuck": time.monotonic() - self._moved,
            "ended": self.ended,
            "hosts": hosts,
        }

    def _content(self) -> dict[str, Json]:
        with self._making:
            version = self._version()
            if self._part is None or version != self._made_of:
                self._part, self._made_of = of_run(self.folder.path, live=True), version
            rows = self._size()
            self._part["curves"] = curves_of(self._rows())
            live: Json = {"token": self.token, "rows": rows, "version": version}
            return document([dict(self._part)], live=live)

    def _rows(self) -> list[dict[str, object]]:
        try:
            return self.folder.read_metrics()
        except PurineError:
            return []

    def _size(self) -> int:
        """Bytes of the metrics, which grow with each row."""
        try:
            return self.folder.metrics_file.stat().st_size
        except OSError:
            return 0

    def _version(self) -> int:
        """A value that changes when there is another trace."""
        try:
            return self.folder.trace_file.stat().st_mtime_ns // 1_000_000
        except OSError:
            return 0

    def _ask(self) -> list[Answer]:
        with self._asking:
            if time.monotonic() - self._answered > _ASK:
                try:
                    self._answers = ask(self.folder.path, self._hosts, seconds=_PATIENCE)
                except OSError:
                    self._answers = [Answer(host, fresh=False) for host in self._hosts]
                self._answered = time.monotonic()
            return self._answers
