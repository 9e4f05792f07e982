"""Running a job under the eyes of a person: signals, a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import logging
import math
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from types import FrameType
from typing import Protocol

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from purine.cli.placement import placement_text, where_text
from purine.errors import ConfigError
from purine.job import Plan, RunFolder, Tested, Trained, Training, make_plan, merge, resume
from purine.job.config import Options

__all__ = ["run_job"]

_LINE_SECONDS = 5.0
_SMOOTHING = 0.95


def run_job(layers: Sequence[Options], *, resumed: bool, dry: bool = False) -> int:
    """Start or resume the job that layers of options describe; returns the exit code.

    With `dry`, nothing runs and nothing is written: only what it would take is told.
    """
    with _signals() as signals:
        if dry:
            print(placement_text(_resumed_plan(layers)[0] if resumed else _new_plan(layers)))
            return 0
        plan, folder = _resumed(layers) if resumed else _started(layers)
        with folder.only_writer(), Training(plan, folder) as training:
            print(_headline(training), flush=True)
            left = not training.complete
            view: _View = _Bar(plan) if sys.stdout.isatty() else _Lines(plan)
            with view, _telling(view):
                _follow(training, view, signals)
            if training.complete:
                print(_result(training) if left or not resumed else _longer(training), flush=True)
                return 0
            print(f"stopped at iteration {training.iteration} of {plan.iterations}; to go on:")
            print(f"  purine train --resume --out {folder.path}", flush=True)
            return 128 + signals.received[0]


def _started(layers: Sequence[Options]) -> tuple[Plan, RunFolder]:
    plan = _new_plan(layers)
    return plan, RunFolder.create(plan.job, plan.net, test_net=plan.test_net, values=plan.values)


def _new_plan(layers: Sequence[Options]) -> Plan:
    job = merge(*layers)
    if job.out is not None:  # before the graphs are built, which may take long
        RunFolder.at(job.out).refuse_run()
    plan = make_plan(job)
    for note in plan.notes:
        print(f"note: {note}", file=sys.stderr)
    return plan


def _resumed(layers: Sequence[Options]) -> tuple[Plan, RunFolder]:
    plan, folder = _resumed_plan(layers)
    if folder.newest_checkpoint() is None:
        print("note: the run has no checkpoint yet, so it begins again", file=sys.stderr)
    if plan.job != folder.read_config():
        folder.write_config(plan.job)
    return plan, folder


def _resumed_plan(layers: Sequence[Options]) -> tuple[Plan, RunFolder]:
    given = {key: value for layer in layers for key, value in layer.items()}
    if "out" not in given:
        raise ConfigError(
            "--resume does not say which run",
            expected="the folder of a run",
            found="no --out",
            remedy="write purine train --resume --out DIR",
        )
    folder = RunFolder.existing(given["out"])
    folder.refuse_lost_checkpoints()
    return resume(folder, given), folder


def _follow(training: Training, view: _View, signals: _Signals) -> None:
    for event in training.events(lambda: bool(signals.received)):
        if isinstance(event, Trained):
            view.trained(event)
        elif isinstance(event, Tested):
            view.note(_test_text(training.plan, event))
        elif signals.received and not training.complete:
            view.note(f"saved {event.path}")


def _headline(training: Training) -> str:
    plan = training.plan
    start = f"from iteration {training.iteration} " if training.iteration else ""
    return (
        f"{plan.job.net} on {plan.job.data}: {plan.iterations} iterations of {plan.images} samples "
        f"with {plan.job.solver}{where_text(plan)}, {start}into {training.folder.path}"
    )


def _result(training: Training) -> str:
    found = training.summary()
    speed, accuracy = found["images_per_second"], found["test_accuracy"]
    loss = found["test_loss"]
    parts = [f"{found['iterations']} iterations in {found['seconds']:.1f} s"]
    if speed is not None:
        parts.append(f"{speed:,.0f} {training.plan.samples}/s")
    if accuracy is not None:
        parts.append(f"test accuracy {accuracy:.4f}")
    if isinstance(loss, float) and not math.isfinite(loss):
        parts.append(f"but the test loss is {loss}")
    return f"done: {', '.join(parts)}; see {training.folder.path}"


def _longer(training: Training) -> str:
    """How to go on with a run of which nothing was left."""
    job = training.plan.job
    more = f"--iters {2 * job.iters}" if job.iters else f"--epochs {2 * (job.epochs or 0) or 1}"
    return (
        f"nothing is left to train: all {training.iteration} iterations were done before; to train "
        f"longer:\n  purine train --resume --out {training.folder.path} {more}"
    )


def _test_text(plan: Plan, event: Tested) -> str:
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

    def trained(self, event: Trained) -> None: ...

    def note(self, text: str) -> None: ...


class _Meter:
    """The loss, smoothed, and the speed since the last look."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.loss: float | None = None
        self._images = 0
        self._since = perf_counter()

    def add(self, event: Trained) -> None:
        self._images += self.plan.images
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
    """A plain line every few seconds, for files and pipes."""

    def __init__(self, plan: Plan) -> None:
        self.meter = _Meter(plan)

    def __enter__(self) -> _Lines:
        return self

    def __exit__(self, *details: object) -> None:
        pass

    def trained(self, event: Trained) -> None:
        self.meter.add(event)
        plan = self.meter.plan
        if self.meter.seconds >= _LINE_SECONDS or event.iteration == plan.iterations:
            place = (
                f"epoch {event.epoch}/{plan.epochs}, iteration {event.iteration}/{plan.iterations}"
            )
            facts = f"loss {self.meter.loss_text}, lr {event.lr:.3g}"
            if event.loss_scale is not None:
                facts += f", loss scale {event.loss_scale:g}"
            print(f"{place}: {facts}, {self.meter.speed():,.0f} {plan.samples}/s", flush=True)

    def note(self, text: str) -> None:
        print(text, flush=True)


class _Bar:
    """A progress bar with loss, rate, loss scale if any, samples a second and the time left."""

    def __init__(self, plan: Plan) -> None:
        self.meter = _Meter(plan)
        self.task: TaskID | None = None
        self.progress = Progress(
            TextColumn("epoch {task.fields[epoch]}"),
            BarColumn(bar_width=None),
            TextColumn("{task.completed}/{task.total}"),
            TextColumn("loss {task.fields[loss]}"),
            TextColumn("lr {task.fields[lr]}"),
            *([TextColumn("scale {task.fields[scale]}")] if plan.has_loss_scale else []),
            TextColumn(f"{{task.fields[speed]}} {plan.samples}/s"),
            TimeRemainingColumn(),
            transient=True,
        )

    def __enter__(self) -> _Bar:
        self.progress.start()
        return self

    def __exit__(self, *details: object) -> None:
        self.progress.stop()

    def trained(self, event: Trained) -> None:
        plan = self.meter.plan
        self.meter.add(event)
        if self.task is None:
            self.task = self.progress.add_task(
                "", total=plan.iterations, epoch="", loss="", lr="", scale="", speed="?"
            )
        if self.meter.seconds >= 0.5:
            speed = f"{self.meter.speed():,.0f}"
            self.progress.update(self.task, speed=speed)
        self.progress.update(
            self.task,
            completed=event.iteration,
            epoch=f"{event.epoch}/{plan.epochs}",
            loss=self.meter.loss_text,
            lr=f"{event.lr:.3g}",
            scale="" if event.loss_scale is None else f"{event.loss_scale:g}",
        )

    def note(self, text: str) -> None:
        self.progress.console.print(text, markup=False, highlight=False, soft_wrap=True)


class _Signals:
    """The signals that asked the run to stop, in order."""

    def __init__(self) -> None:
        self.received: list[int] = []

    def handle(self, number: int, frame: FrameType | None) -> None:
        if self.received:  # the second one: no more waiting
            if sys.stdout.isatty():
                os.write(sys.stdout.fileno(), b"\x1b[?25h\n")  # the bar had hidden the cursor
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self.received.append(number)
        os.write(2, b"stopping after the iterations in flight; once more to stop at once\n")


@contextmanager
def _signals() -> Iterator[_Signals]:
    """Let SIGINT and SIGTERM be asked for politely while a job runs."""
    signals = _Signals()
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, signals.handle) for number in numbers]
    try:
        yield signals
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
