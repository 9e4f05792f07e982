"""Running a job under the eyes of a person: signals, a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import logging
import math
import os
import shlex
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from time import perf_counter
from types import FrameType
from typing import IO, Protocol, cast

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from purine.cli.output import Output, drop_output, has_output, unwritable
from purine.cli.placement import headline, placement_text
from purine.errors import ConfigError
from purine.job import (
    JobPlan,
    RunFolder,
    Tested,
    Trained,
    Training,
    job_layers,
    open_folder,
    plan_run,
)
from purine.job.config import Given

__all__ = ["run_job"]

_LINE_SECONDS = 5.0
_SIGN_SECONDS = 2.0  # until a plain line says what takes so long before the first iteration
_SMOOTHING = 0.95


def run_job(file: Path | None, given: Given, *, resumed: bool, dry: bool = False) -> int:
    """Start or resume the job that a file and options describe; returns the exit code.

    With `dry`, nothing runs and nothing is written: only what the job needs is printed.
    """
    layers = job_layers(file, given)
    with _signals() as signals:
        if dry:
            print(placement_text(_plan(layers, resumed=resumed)[0]))
            return 0
        output = Output(sys.stdout if has_output() else open(os.devnull, "w"))  # noqa: SIM115
        view = _view(output)
        with view, _telling(view):
            view.stage("reading the data and building the graphs")
            plan, folder = _plan(layers, resumed=resumed)
            folder = open_folder(plan, folder)
            return _train(plan, folder, view, output, signals, resumed=resumed)


def _plan(layers: Sequence[Given], *, resumed: bool) -> tuple[JobPlan, RunFolder | None]:
    """The plan of a run, whose notes are printed, and the folder of one that is resumed."""
    plan, folder = plan_run(layers, resumed=resumed)
    for note in plan.notes:
        print(f"note: {note}", file=sys.stderr)
    return plan, folder


def _train(
    plan: JobPlan,
    folder: RunFolder,
    view: _View,
    output: Output,
    signals: _Signals,
    *,
    resumed: bool,
) -> int:
    with folder.only_writer(), Training(plan, folder) as training:
        view.note(_headline(training))
        if not has_output():
            metrics = folder.metrics_file
            print(f"note: there is no standard output; see {metrics}", file=sys.stderr, flush=True)
        left = not training.complete
        view.begin(plan, training.iteration)
        for event in training.events(lambda: bool(signals.received) or output.error is not None):
            if isinstance(event, Trained):
                view.trained(event)
            elif isinstance(event, Tested):
                view.tested(event)
            elif signals.received and not training.complete:
                view.note(f"saved {event.path}")
        again = f"purine train --resume --out {shlex.quote(str(folder.path))}"
        if training.complete:
            view.note(_result(training) if left or not resumed else _longer(training, again))
            code = 0
        else:
            view.note(f"stopped at iteration {training.iteration} of {plan.iterations}; to go on:")
            view.note(f"  {again}")
            code = 128 + signals.received[0] if signals.received else 2
        if output.error is not None:
            drop_output()
        if output.error is not None and not signals.received:
            raise _unseen(training, output.error, again)
        return code


def _unseen(training: Training, error: OSError, again: str) -> ConfigError:
    """What to tell about a training whose output failed."""
    done = training.iteration
    if training.complete:
        what, remedy = "the run is complete", f"see {training.folder.path}"
    else:
        what = (
            f"the run stopped at iteration {done} of {training.plan.iterations}, with a checkpoint"
        )
        remedy = f"go on with output to another place: {again}"
    return unwritable(error, f"cannot write the output; {what}", remedy)


def _headline(training: Training) -> str:
    start = f"from iteration {training.iteration} " if training.iteration else ""
    return f"{headline(training.plan)}, {start}into {training.folder.path}"


def _result(training: Training) -> str:
    found = training.summary()
    speed, accuracy = found["images_per_second"], found["test_accuracy"]
    loss = found["test_loss"]
    parts = [f"{found['iterations']} iterations in {found['seconds']:.1f} s"]
    if speed is not None:
        parts.append(f"{speed:,.0f} {training.plan.sample_noun}/s")
    if accuracy is not None:
        parts.append(f"test accuracy {accuracy:.4f}")
    if isinstance(loss, float) and not math.isfinite(loss):
        parts.append(f"but the test loss is {loss}")
    return f"done: {', '.join(parts)}; see {training.folder.path}"


def _longer(training: Training, again: str) -> str:
    """How to go on with a run of which nothing was left."""
    job = training.plan.job
    more = f"--iters {2 * job.iters}" if job.iters else f"--epochs {2 * (job.epochs or 0) or 1}"
    return (
        f"nothing is left to train: all {training.iteration} iterations were done before; to train "
        f"longer:\n  {again} {more}"
    )


def _test_text(plan: JobPlan, event: Tested) -> str:
    loss = [] if event.loss is None else [f"loss {event.loss:.4f}"]
    accuracy = [] if event.accuracy is None else [f"accuracy {event.accuracy:.4f}"]
    return (
        f"epoch {event.epoch}/{plan.epochs}, iteration {event.iteration}: "
        f"test {', '.join([*loss, *accuracy]) or 'without a number'}"
    )


@contextmanager
def _telling(view: _View) -> Iterator[None]:
    """Let the person see what the run says of itself: what it compiles, which may take minutes."""
    log, handler = logging.getLogger("purine"), _Teller(view)
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.setLevel(level)
        log.removeHandler(handler)


class _Teller(logging.Handler):
    def __init__(self, view: _View) -> None:
        super().__init__(logging.INFO)
        self.view = view

    def emit(self, record: logging.LogRecord) -> None:
        self.view.note(record.getMessage())


class _View(Protocol):
    def __enter__(self) -> object: ...

    def __exit__(self, *details: object) -> None: ...

    def stage(self, text: str) -> None:
        """Say what is done before the first iteration."""

    def begin(self, plan: JobPlan, iteration: int) -> None:
        """Say that iterations follow, of which some were done before."""

    def trained(self, event: Trained) -> None: ...

    def tested(self, event: Tested) -> None: ...

    def note(self, text: str) -> None: ...


def _view(output: Output) -> _View:
    """A bar on a terminal that can move its cursor, else plain lines."""
    plain = not output.isatty() or os.environ.get("TERM", "").lower() in ("dumb", "unknown")
    return _Lines(output) if plain else _Bar(output)


class _Meter:
    """The loss, smoothed, and the speed since the last look."""

    def __init__(self, plan: JobPlan) -> None:
        self.plan = plan
        self.loss: float | None = None
        self._images = 0
        self._since = perf_counter()

    def add(self, event: Trained) -> None:
        self._images += self.plan.samples_per_iteration
        if not math.isfinite(event.loss):  # a loss scale skipped it
            return
        self.loss = (
            event.loss
            if self.loss is None
            else _SMOOTHING * self.loss + (1 - _SMOOTHING) * event.loss
        )

    @property
    def loss_text(self) -> str:
        return "?" if self.loss is None else f"{self.loss:.4f}"

    @property
    def seconds(self) -> float:
        return perf_counter() - self._since

    def speed(self) -> float:
        """Samples a second since this was last asked."""
        found = self._images / max(self.seconds, 1e-9)
        self._images, self._since = 0, perf_counter()
        return found


class _Lines:
    """A plain line every few seconds, for files, pipes and terminals without a cursor."""

    def __init__(self, output: Output) -> None:
        self.output = output
        self.meter: _Meter | None = None
        self._stage: str | None = None
        self._begun = perf_counter()
        self._ended = threading.Event()
        self._watch = threading.Thread(target=self._tell_stages, name="purine-stages", daemon=True)

    def __enter__(self) -> _Lines:
        self._watch.start()
        return self

    def __exit__(self, *details: object) -> None:
        self._ended.set()
        self._watch.join()

    def stage(self, text: str) -> None:
        self._stage, self._begun = text, perf_counter()

    def begin(self, plan: JobPlan, iteration: int) -> None:
        self.meter = _Meter(plan)
        self.stage("the first iteration")

    def _tell_stages(self) -> None:
        """Say what is going on where it takes long before there is a number to tell."""
        told, seconds = "", _SIGN_SECONDS
        while not self._ended.wait(0.1):
            stage = self._stage
            if stage is None:
                return
            if stage != told:
                told, seconds = stage, _SIGN_SECONDS
            passed = perf_counter() - self._begun
            if passed >= seconds:
                self.output.print(f"{stage}: {passed:.0f} s so far")
                seconds = passed + _LINE_SECONDS

    def trained(self, event: Trained) -> None:
        assert self.meter is not None
        self._stage = None
        self.meter.add(event)
        plan = self.meter.plan
        if self.meter.seconds >= _LINE_SECONDS or event.iteration == plan.iterations:
            place = (
                f"epoch {event.epoch}/{plan.epochs}, iteration {event.iteration}/{plan.iterations}"
            )
            facts = f"loss {self.meter.loss_text}, lr {event.lr:.3g}"
            if event.loss_scale is not None:
                facts += f", loss scale {event.loss_scale:g}"
            self.note(f"{place}: {facts}, {self.meter.speed():,.0f} {plan.sample_noun}/s")

    def tested(self, event: Tested) -> None:
        assert self.meter is not None
        self.note(_test_text(self.meter.plan, event))

    def note(self, text: str) -> None:
        self.output.print(text)


class _Bar:
    """A progress bar: where the run is, its numbers, the time that passed and the time left."""

    def __init__(self, output: Output) -> None:
        self.meter: _Meter | None = None
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

    def __enter__(self) -> _Bar:
        self.progress.start()
        return self

    def __exit__(self, *details: object) -> None:
        self.progress.stop()

    def stage(self, text: str) -> None:
        self.progress.update(self.task, description=text)

    def begin(self, plan: JobPlan, iteration: int) -> None:
        self.meter = _Meter(plan)
        self.progress.update(
            self.task,
            description="the first iteration",
            total=plan.iterations,
            completed=iteration,
        )

    def trained(self, event: Trained) -> None:
        assert self.meter is not None
        plan = self.meter.plan
        self.meter.add(event)
        if self.meter.seconds >= 0.5:
            self._speed = f", {self.meter.speed():,.0f} {plan.sample_noun}/s"
        scale = "" if event.loss_scale is None else f", scale {event.loss_scale:g}"
        self.progress.update(
            self.task,
            completed=event.iteration,
            description=f"epoch {event.epoch}/{plan.epochs}, {event.iteration}/{plan.iterations}",
            facts=f"loss {self.meter.loss_text}{self._accuracy}, lr {event.lr:.3g}{scale}"
            + self._speed,
        )

    def tested(self, event: Tested) -> None:
        assert self.meter is not None
        if event.accuracy is not None:
            self._accuracy = f", accuracy {event.accuracy:.4f}"
        self.note(_test_text(self.meter.plan, event))

    def note(self, text: str) -> None:
        self.progress.console.print(text, markup=False, highlight=False, soft_wrap=True)


_ERASE_LINE = b"\r\x1b[2K"
_SHOW_CURSOR = b"\x1b[?25h"


class _Signals:
    """The signals that asked the run to stop, in order."""

    def __init__(self) -> None:
        self.received: list[int] = []

    def handle(self, number: int, frame: FrameType | None) -> None:
        if self.received and number == signal.SIGHUP:
            return  # a terminal that closes often sends several
        bar = sys.__stdout__ is not None and sys.__stdout__.isatty()
        with suppress(OSError):  # of a terminal that is gone
            if bar:
                os.write(1, _ERASE_LINE)  # the bar, which is drawn again below the message
            if self.received:
                os.write(1, _SHOW_CURSOR if bar else b"")
            else:
                os.write(2, b"stopping after the iterations in flight; once more to stop at once\n")
        if self.received:  # the second one: no more waiting
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self.received.append(number)


@contextmanager
def _signals() -> Iterator[_Signals]:
    """Let SIGINT, SIGTERM and SIGHUP stop a job after its iterations in flight.

    A process that was started to outlive its terminal (`nohup`) goes on ignoring SIGHUP.
    """
    signals = _Signals()
    numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        numbers.remove(signal.SIGHUP)
    before = [signal.signal(number, signals.handle) for number in numbers]
    try:
        yield signals
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
