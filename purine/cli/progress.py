"""Running a job from the command line: the output and the exit code."""

from __future__ import annotations

import logging
import math
import os
import shlex
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType

from purine.cli.figures import figures
from purine.cli.output import Output, drop_output, has_output, unwritable
from purine.cli.views import View, view_on
from purine.errors import ConfigError
from purine.job import JobPlan, RunFolder, Tested, Trained, Training
from purine.job.config import Given
from purine.job.foresee import foresight
from purine.job.hosts import folder_on, join_hosts, joined, opened
from purine.job.launch import job_layers, plan_run, resume, started_again
from purine.job.placing import hosts_of_job, megabytes, over_hosts, own_host, placement, scheme_of
from purine.job.status import answering
from purine.job.training import run_of
from purine.job.work import Work
from purine.placement.devices import parse_devices
from purine.transports.open_world import OpenWorld
from purine.transports.processes import rank_and_size
from purine.transports.world import World
from purine.viewer.live import live_page

__all__ = ["Signals", "join_job", "run_job", "stop_signals"]

_ERASE_LINE = b"\r\x1b[2K"
_SHOW_CURSOR = b"\x1b[?25h"


def run_job(
    file: Path | None, given: Given, *, resumed: bool, dry: bool = False, live: bool = False
) -> int:
    """Start or resume the job that a file and options describe; returns the exit code.

    With `dry`, nothing runs and nothing is written: only what the job needs is printed. With `live`
    the first host serves a page of the run.
    """
    layers = job_layers(file, given)
    resumed = resumed or started_again(layers)
    with stop_signals() as signals:
        if dry:
            print(_placement_text(_plan(layers, resumed=resumed)[0]))
            return 0
        shown = has_output() and rank_and_size()[0] == 0  # the first host shows the progress of all
        output = Output(sys.stdout if shown else open(os.devnull, "w"))  # noqa: SIM115
        view = view_on(output)
        with view, _showing_log(view):
            view.stage("reading the data and building the graphs")
            plan, folder = _plan(layers, resumed=resumed)
            met = join_hosts(plan.job)
            folder = folder_on(met, plan, folder)
            world: World | None = met
            if met is not None and over_hosts(plan.job):
                others = opened(met, plan, folder)
                if others is None:
                    return 0
                if not others.serves:
                    return _work(plan, folder, others, signals)
                world = others
            serves = live and (world is None or world.first)
            with live_page(folder.path) if serves else nullcontext() as address:
                if address is not None:
                    view.note(f"live: {address}")
                code = _train(plan, folder, world, view, output, signals, resumed=resumed)
            folder.meeting_file.unlink(missing_ok=True)
            if world is not None:
                world.close()
            return code


def _plan(layers: Sequence[Given], *, resumed: bool) -> tuple[JobPlan, RunFolder | None]:
    """The plan of a run, whose notes are printed, and the folder of one that is resumed."""
    plan, folder = plan_run(layers, resumed=resumed)
    for note in plan.notes:
        print(f"note: {note}", file=sys.stderr)
    return plan, folder


def _train(
    plan: JobPlan,
    folder: RunFolder,
    world: World | None,
    view: View,
    output: Output,
    signals: Signals,
    *,
    resumed: bool,
) -> int:
    host = hosts_of_job(plan.job)[0] if world is None else world.host
    with (
        folder.only_writer(),
        Training(plan, folder, world) as training,
        answering(folder.path, host, training.status),
    ):
        start = f"from iteration {training.iteration} " if training.iteration else ""
        view.note(f"{_headline(plan)}, {start}into {folder.path}")
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
        progress = f"stopped at iteration {training.iteration} of {plan.iterations}"
        if not training.complete:
            view.note(f"{progress}; to go on:\n  {_resume_command(training)}")
        else:
            view.note(_result(training) if left or not resumed else _nothing_left(training))
        if output.error is not None:
            drop_output()
            if not signals.received:
                raise _failed_output(training, output.error, progress)
        if training.complete:
            return 0
        return 128 + signals.received[0] if signals.received else 2


def _work(plan: JobPlan, folder: RunFolder, world: OpenWorld, signals: Signals) -> int:
    """Train as a worker of a job whose server is another host; returns the exit code."""
    with run_of(plan, world) as run:
        work = Work(plan, run, world)
        with answering(folder.path, world.host, work.status):
            work.until(lambda: bool(signals.received))
    world.close()
    return 128 + signals.received[0] if signals.received else 0


def join_job(path: Path, transport: str | None, threads: int | None) -> int:
    """Train as a worker that joins the job in a folder; returns the exit code."""
    if threads is not None and threads < 1:
        what, remedy = f"--threads is {threads}", "leave --threads out"
        raise ConfigError(what, "1 or more threads", str(threads), remedy)
    folder = RunFolder.existing(path)
    folder.read_meeting()
    with stop_signals() as signals:
        plan = resume(folder, {})
        plan = plan if threads is None else replace(plan, job=replace(plan.job, threads=threads))
        print(f"waiting for a seat in {path}", flush=True)
        world = joined(folder, transport)
        print(f"training as {world.host}, from iteration {world.begin} on", flush=True)
        code = _work(plan, folder, world, signals)
        print("left", flush=True)
        return code


def _headline(plan: JobPlan) -> str:
    """What is trained: net, data, iterations and solver; precision and devices if not the usual."""
    job = plan.job
    samples, devices = plan.samples_per_iteration, parse_devices(job.devices)
    text = f"{job.net} on {job.data}: {plan.iterations} iterations of {samples} samples "
    text += f"with {job.solver}" + ("" if job.precision == "fp32" else f" in {job.precision}")
    items = str(scheme_of(job)).split(",")
    scheme = ",".join("schedule=grid" if "\n" in item else item for item in items)
    return text + (f" on {len(devices)} devices ({scheme})" if len(devices) > 1 else "")


def _placement_text(plan: JobPlan) -> str:
    """Memory of each device, bytes moved, and the schedule of a pipeline."""
    job, needs = plan.job, placement(plan.step, own_host(plan.job))
    several = len({at.host for at in needs.peaks}) > 1
    lines = [
        _headline(plan),
        "peak memory of an iteration, without temporary memory of kernels:",
        *(
            f"  {f'{at.host}:{at.device}' if several else at.device:<8} {megabytes(size):>12}"
            for at, size in needs.peaks.items()
        ),
    ]
    for memory, size in needs.available.items():
        needed = megabytes(needs.needed(memory))
        which = f"{memory} of {needs.host}" if several else memory
        lines.append(f"  all {needed} of {megabytes(size)} available ({which})")
    if len(needs.peaks) > 1:
        lines.append(f"between devices: {megabytes(needs.moved)} an iteration")
    scheme = scheme_of(job)
    if scheme is not None and scheme.pipeline > 1:
        grid, idle = scheme.grid(job.accumulate or 1), scheme.idle(job.accumulate or 1)
        lines.append(
            f"schedule of each replica, {grid.micro} micro-batches over {grid.stages} stages; "
            f"{idle:.1%} idle where stages take equally long:"
        )
        lines += [f"  {row}" for row in str(grid).splitlines()]
    if scheme is None or scheme.asynchronous is None:
        lines += figures(plan, foresight(plan, memory=False)).splitlines()
    return "\n".join(lines)


def _resume_command(training: Training) -> str:
    return f"purine train --resume --out {shlex.quote(str(training.folder.path))}"


def _failed_output(training: Training, error: OSError, progress: str) -> ConfigError:
    if training.complete:
        what, remedy = "the run is complete", f"see {training.folder.path}"
    else:
        what = f"the run {progress}, with a checkpoint"
        remedy = f"continue with output to another place: {_resume_command(training)}"
    return unwritable(error, f"cannot write the output; {what}", remedy)


def _result(training: Training) -> str:
    summary = training.summary()
    speed, accuracy, loss = map(summary.get, ("images_per_second", "test_accuracy", "test_loss"))
    parts = [f"{summary['iterations']} iterations in {summary['seconds']:.1f} s"]
    if speed is not None:
        parts.append(f"{speed:,.0f} {training.plan.sample_noun}/s")
    if accuracy is not None:
        parts.append(f"test accuracy {accuracy:.4f}")
    if isinstance(loss, float) and not math.isfinite(loss):
        parts.append(f"but the test loss is {loss}")
    return f"done: {', '.join(parts)}; see {training.folder.path}"


def _nothing_left(training: Training) -> str:
    """How to train longer if a resumed run was already complete."""
    job = training.plan.job
    more = f"--iters {2 * job.iters}" if job.iters else f"--epochs {2 * (job.epochs or 0) or 1}"
    return (
        f"nothing is left to train: all {training.iteration} iterations were done before; to train "
        f"longer:\n  {_resume_command(training)} {more}"
    )


class Signals:
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
def stop_signals() -> Iterator[Signals]:
    """Let SIGINT, SIGTERM and SIGHUP stop a job after its iterations in flight."""
    signals = Signals()
    numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # `nohup`: to outlive the terminal
        numbers.remove(signal.SIGHUP)
    before = [signal.signal(number, signals.handle) for number in numbers]
    try:
        yield signals
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


@contextmanager
def _showing_log(view: View) -> Iterator[None]:
    """Show log messages of the run, such as what it compiles, which may take minutes."""
    log, handler = logging.getLogger("purine"), _NoteHandler(view)
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.setLevel(level)
        log.removeHandler(handler)


class _NoteHandler(logging.Handler):
    def __init__(self, view: View) -> None:
        super().__init__(logging.INFO)
        self.view = view

    def emit(self, record: logging.LogRecord) -> None:
        self.view.note(record.getMessage())
