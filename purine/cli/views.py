"""The progress of a run on a screen: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import os
import sys
import threading
from abc import ABC, abstractmethod
from time import perf_counter
from typing import IO, cast

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from purine.cli.output import Output
from purine.job import JobPlan, Tested, Trained

__all__ = ["Bar", "Lines", "View", "view_on"]

_LINE_SECONDS = 5.0
_STAGE_SECONDS = 2.0  # until a plain line says what takes so long before the first iteration
_SMOOTHING = 0.95
_MOST_WORKERS = 8  # that are shown


class _Meter:
    """The smoothed loss, and the speed since it was last read."""

    def __init__(self, plan: JobPlan) -> None:
        self.plan = plan
        self.loss: float | None = None
        self._samples = 0
        self._since = perf_counter()
        self._workers: tuple[tuple[int, int], ...] = ()
        """What workers had done when the speed was last read."""

    def add(self, event: Trained) -> None:
        self._workers = self._workers or ((0, 0),) * len(event.workers)
        self._samples += self.plan.samples_per_iteration
        if not math.isfinite(event.loss):  # a loss scale skipped it
            return
        before = event.loss if self.loss is None else self.loss
        self.loss = _SMOOTHING * before + (1 - _SMOOTHING) * event.loss

    @property
    def loss_text(self) -> str:
        return "?" if self.loss is None else f"{self.loss:.4f}"

    @property
    def seconds(self) -> float:
        return perf_counter() - self._since

    def speeds(self, event: Trained) -> str:
        """Samples a second since the last call. With workers, in a line of its own the speed of
        each, and how stale what it read was on average."""
        samples = self.plan.samples_per_iteration / max(1, len(event.workers))
        shown = []
        both = zip(event.workers, self._workers, strict=True)
        for number, ((now, stale), (before, old)) in enumerate(both):
            count = now - before
            speed, mean = count * samples / max(self.seconds, 1e-9), (stale - old) / max(1, count)
            shown.append(f"{number}: {speed:,.0f}/s ({mean:.1f})")
        if len(shown) > _MOST_WORKERS:
            shown[_MOST_WORKERS:] = [f"and {len(shown) - _MOST_WORKERS} more"]
        line = f"\n  workers, with their staleness: {', '.join(shown)}" if shown else ""
        speed = self._samples / max(self.seconds, 1e-9)
        self._workers, self._samples, self._since = event.workers, 0, perf_counter()
        return f", {speed:,.0f} {self.plan.sample_noun}/s{line}"


class View(ABC):
    """Shows the progress of a run."""

    meter: _Meter

    @abstractmethod
    def __enter__(self) -> object: ...

    @abstractmethod
    def __exit__(self, *details: object) -> None: ...

    @abstractmethod
    def stage(self, text: str) -> None:
        """Show a stage of the work before the first iteration."""

    def begin(self, plan: JobPlan, iteration: int) -> None:
        """Show that training begins, at this iteration."""
        self.meter = _Meter(plan)
        self.stage("the first iteration")

    @abstractmethod
    def trained(self, event: Trained) -> None: ...

    def tested(self, event: Tested) -> None:
        results = (("loss", event.loss), ("accuracy", event.accuracy))
        numbers = ", ".join(f"{name} {value:.4f}" for name, value in results if value is not None)
        text = f"epoch {event.epoch}/{self.meter.plan.epochs}, iteration {event.iteration}"
        self.note(f"{text}: test {numbers or 'without a number'}")

    @abstractmethod
    def note(self, text: str) -> None:
        """Show a line that stays."""


def view_on(output: Output) -> View:
    """A bar on a terminal that can move its cursor, else plain lines."""
    plain = not output.isatty() or os.environ.get("TERM", "").lower() in ("dumb", "unknown")
    return Lines(output) if plain else Bar(output)


class Lines(View):
    """A plain line every few seconds, for files, pipes and terminals without a cursor."""

    def __init__(self, output: Output) -> None:
        self.output = output
        self._stage: str | None = None
        self._begun = perf_counter()
        self._ended = threading.Event()
        self._watch = threading.Thread(target=self._print_stages, name="purine-stages", daemon=True)

    def __enter__(self) -> Lines:
        self._watch.start()
        return self

    def __exit__(self, *details: object) -> None:
        self._ended.set()
        self._watch.join()

    def stage(self, text: str) -> None:
        self._stage, self._begun = text, perf_counter()

    def _print_stages(self) -> None:
        """Print the stage before the first iteration, and for how long, if it takes long."""
        printed, seconds = "", _STAGE_SECONDS
        while not self._ended.wait(0.1):
            stage = self._stage
            if stage is None:
                return
            if stage != printed:
                printed, seconds = stage, _STAGE_SECONDS
            passed = perf_counter() - self._begun
            if passed >= seconds:
                self.output.print(f"{stage}: {passed:.0f} s so far")
                seconds = passed + _LINE_SECONDS

    def trained(self, event: Trained) -> None:
        self._stage = None
        self.meter.add(event)
        plan = self.meter.plan
        if self.meter.seconds >= _LINE_SECONDS or event.iteration == plan.iterations:
            scale = "" if event.loss_scale is None else f", loss scale {event.loss_scale:g}"
            self.note(
                f"epoch {event.epoch}/{plan.epochs}, "
                f"iteration {event.iteration}/{plan.iterations}: "
                f"loss {self.meter.loss_text}, lr {event.lr:.3g}{scale}{_staleness(event)}"
                f"{self.meter.speeds(event)}"
            )

    def note(self, text: str) -> None:
        self.output.print(text)


class Bar(View):
    """A progress bar: where the run is, its numbers, the time that passed and the time left."""

    def __init__(self, output: Output) -> None:
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[facts]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=Console(file=cast(IO[str], output)),
            transient=True,
            redirect_stderr=sys.stderr.isatty(),
        )
        self.task = self.progress.add_task("", total=None, facts="")
        self._accuracy = ""
        self._speed = ""

    def __enter__(self) -> Bar:
        self.progress.start()
        return self

    def __exit__(self, *details: object) -> None:
        self.progress.stop()

    def stage(self, text: str) -> None:
        self.progress.update(self.task, description=text)

    def begin(self, plan: JobPlan, iteration: int) -> None:
        super().begin(plan, iteration)
        self.progress.update(self.task, total=plan.iterations, completed=iteration)

    def trained(self, event: Trained) -> None:
        plan = self.meter.plan
        self.meter.add(event)
        if self.meter.seconds >= 0.5:
            self._speed = self.meter.speeds(event)
        scale = "" if event.loss_scale is None else f", scale {event.loss_scale:g}"
        self.progress.update(
            self.task,
            completed=event.iteration,
            description=f"epoch {event.epoch}/{plan.epochs}, {event.iteration}/{plan.iterations}",
            facts=f"loss {self.meter.loss_text}{self._accuracy}, lr {event.lr:.3g}{scale}"
            + _staleness(event)
            + self._speed,
        )

    def tested(self, event: Tested) -> None:
        if event.accuracy is not None:
            self._accuracy = f", accuracy {event.accuracy:.4f}"
        super().tested(event)

    def note(self, text: str) -> None:
        self.progress.console.print(text, markup=False, highlight=False, soft_wrap=True)


def _staleness(event: Trained) -> str:
    """The mean and the largest staleness of the reads of workers; empty if all are 0."""
    if event.staleness is None:
        return ""
    mean, largest = event.staleness
    return f", staleness {mean:.1f} (at most {largest})"
