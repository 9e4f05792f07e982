"""The training loop: steps, tests, saves and metrics, each exactly at its iteration.

Between two pauses (a test, a save, the end of a trace) iterations overlap; at a pause nothing is in
flight. Metrics and test results are written before the checkpoint of the same iteration, so a run
that is resumed from a checkpoint has all lines up to it and repeats the later ones.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Literal, TypeAlias

import torch

from purine.autodiff import losses_of
from purine.errors import RunError
from purine.graph import Builder, Graph
from purine.job.crew import Crew
from purine.job.figures import WorkerFigures
from purine.job.folder import FollowerFolder, RunFolder
from purine.job.measuring import RUN, identity_of_run, refuse_foreign, results_of
from purine.job.placing import compiles, workers_of
from purine.job.plan import JobPlan
from purine.job.rounds import rounds_of
from purine.job.status import TRAINS, Status, status_of
from purine.job.tensorboard import EventFiles
from purine.kinds.loss_scale import FINITE, LOSS_SCALE
from purine.lowering.workers import has_workers
from purine.placement.devices import parse_devices
from purine.recipe import fused
from purine.runtime import checkpoint
from purine.runtime.result import Result
from purine.runtime.run import Run
from purine.transports.open_world import OpenWorld
from purine.transports.world import World

__all__ = ["Event", "Saved", "Tested", "Trained", "Training", "run_of"]

_MOST_IN_A_ROW = 25
"""Overflows in a row that end a job: 24 halve the largest loss scale, 2 ** 24, to 1."""
_log = logging.getLogger("purine")


@dataclass(frozen=True, slots=True)
class Trained:
    """Iteration number `iteration` is complete; with a loss scale, `loss` may be infinite or NaN.

    `staleness` is that of workers since the metrics were last written: the mean and the largest.
    `workers` are their iterations so far, and the sums of their staleness.
    """

    iteration: int
    epoch: int
    loss: float
    lr: float
    loss_scale: float | None = None
    staleness: tuple[float, int] | None = None
    workers: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Tested:
    """The net was measured on the test set. None stands for what the test net does not compute."""

    iteration: int
    epoch: int
    loss: float | None
    accuracy: float | None


@dataclass(frozen=True, slots=True)
class Saved:
    """There is a checkpoint of this iteration."""

    iteration: int
    path: Path


Event: TypeAlias = Trained | Tested | Saved
"""What happened during training."""


def run_of(plan: JobPlan, world: World | None = None) -> Run:
    """The run of a plan's step, on this host."""
    job, step = plan.job, _with_overflow_flag(plan.step)
    record: bool | Literal["segments"] = job.trace
    if isinstance(world, OpenWorld):  # it is not made again after the trace, so it stays fast
        record = "segments" if job.trace and (world.serves or world.traced) else False
    compiled = compiles(job, step)
    return Run(
        fused(step) if compiled else step,
        data=plan.data,
        seed=job.seed or 0,
        prefetch=job.prefetch,
        threads=job.threads,
        share_cores=job.share_cores,
        compiled=compiled,
        tf32=job.precision == "tf32",
        record=record,
        world=world,
    )


class Training:
    """The training of a plan in a folder, from the folder's newest checkpoint or from the start."""

    def __init__(self, plan: JobPlan, folder: RunFolder, world: World | None = None) -> None:
        self._world = world
        self.plan = plan
        self.folder = folder
        job = plan.job
        self._workers = workers_of(job)
        """How many iterations of the run are one of the job."""
        self._run: Run | Crew = run_of(plan, world)
        if isinstance(world, OpenWorld):
            self._run = Crew(self._run, world, total=plan.iterations * self._workers)
        self._figures: WorkerFigures | None = None
        if has_workers(plan.step):
            share = plan.samples_per_iteration // self._workers
            self._figures = WorkerFigures(self._workers, share)
        self._weights = losses_of(plan.net)
        self._overflows = _Overflows() if plan.has_loss_scale else None
        self._identity = identity_of_run(plan.job, plan.net, samples=len(plan.data.train))
        self._seconds = 0.0  # in all, with those before this process
        self._training = 0.0  # of these the seconds in which iterations ran
        self._saved: int | None = None
        self._tested: Tested | None = None
        self._load()
        self._trace_end = self.iteration + job.trace_iters if job.trace else None
        self._logged = (self.iteration, self._training)
        writes = bool(job.tensorboard) and not isinstance(folder, FollowerFolder)
        self._events = EventFiles(folder.path, self.iteration) if writes else None
        self._doing = "starts"

    def status(self) -> Status:
        """What this host does at this moment; any thread may ask."""
        return status_of(self._doing, self._run)

    def __enter__(self) -> Training:
        return self

    def __exit__(self, kind: type[BaseException] | None, *details: object) -> None:
        self._run.__exit__(kind, *details)
        if self._events is not None:
            self._events.close()

    @property
    def iteration(self) -> int:
        """The number of complete iterations."""
        return self._run.iteration // self._workers

    @property
    def complete(self) -> bool:
        """Whether nothing is left to train."""
        return self.iteration >= self.plan.iterations

    def events(self, stop: Callable[[], bool] = lambda: False) -> Iterator[Event]:
        """Train to the end, or until `stop` returns true and the iterations in flight are complete.

        Both end with a checkpoint; a complete run has a summary as well.
        """
        stop = self._agreed(stop)
        begun = perf_counter() - self._seconds
        while not self.complete and not stop():
            for result in self._results(self._next_pause(), stop):
                yield self._log(result)
            self._seconds = perf_counter() - begun
            yield from self._pause()
            self._seconds = perf_counter() - begun
        if self._trace_end is not None:
            self._end_trace()
        tested = self._tested is not None and self._tested.iteration == self.iteration
        if self.complete and self.plan.test is not None and not tested:
            yield self._test()
        if self._saved != self.iteration:
            yield self._save()
        self._seconds = perf_counter() - begun
        self._doing = "ends"
        if self.complete:
            self.folder.write_summary(self.summary())

    def _agreed(self, stop: Callable[[], bool]) -> Callable[[], bool]:
        """`stop`, which on several hosts becomes true at the same iteration on all of them."""
        world, ahead = self._world, 3 * (self.plan.job.prefetch + 2)
        if world is None or isinstance(world, OpenWorld):
            return stop
        return lambda: world.stops(self.iteration, wanted=stop(), ahead=ahead)

    def summary(self) -> dict[str, object]:
        """The results of the run so far."""
        plan, tested = self.plan, self._tested
        samples = self.iteration * plan.samples_per_iteration
        states = plan.net.states
        sizes = [plan.net.blobs[name].shape for name in states if states[name].trainable]
        return {
            "net": plan.job.net,
            "data": plan.job.data,
            "test_accuracy": tested.accuracy if tested else None,
            "test_loss": tested.loss if tested else None,
            "images_per_second": samples / self._training if self._training else None,
            "iterations": self.iteration,
            "epochs": samples / len(plan.data.train),
            "seed": plan.job.seed,
            "devices": list(parse_devices(plan.job.devices)),
            "parallel": plan.job.parallel,
            "precision": plan.job.precision,
            **self._skipped,
            "seconds": self._seconds,
            "parameters": sum(torch.Size(size or ()).numel() for size in sizes),
            "purine": checkpoint.purine_version(),
            "torch": str(torch.__version__),
        }

    @property
    def _skipped(self) -> dict[str, object]:
        """The number of skipped iterations, if there is a loss scale."""
        return {} if self._overflows is None else {"skipped": self._overflows.skipped}

    def _load(self) -> None:
        newest = self.folder.newest_checkpoint()
        if self._world is not None:
            self._world.compare({"newest checkpoint": "none" if newest is None else newest.name})
        if newest is None:
            self._run.set_states(self.plan.values)
        else:
            saved = checkpoint.load(newest, names=())
            self._saved = self._run.load(newest) // self._workers
            refuse_foreign(saved, self._identity)
            extra = saved.extra
            self._seconds = _number(extra.get("seconds"))
            self._training = _number(extra.get("training_seconds"))
            if self._overflows is not None:
                self._overflows.skipped = int(_number(extra.get("skipped")))
        for row in self.folder.cut_metrics(self.iteration):
            if "test_loss" in row:
                values = (row[key] for key in ("iteration", "epoch", "test_loss", "test_accuracy"))
                self._tested = Tested(*values)

    def _results(self, end: int, stop: Callable[[], bool]) -> Iterator[Result]:
        """The results up to iteration `end`, or up to those in flight when `stop` returns true."""
        clock = perf_counter() - self._training
        self._doing = TRAINS
        for result in self._steps(end - self.iteration):
            self._training = perf_counter() - clock
            yield result
            if stop():
                break
        for result in self._steps(min(self._in_flight, end - self.iteration)):
            self._training = perf_counter() - clock
            yield result

    def _steps(self, count: int) -> Iterator[Result]:
        """The results of the next iterations of the job."""
        results: Iterator[Result] = self._run.steps(count * self._workers)
        if self._figures is not None:
            results = map(self._figured, results)
        return results if self._workers == 1 else rounds_of(results, self._workers)

    def _figured(self, result: Result) -> Result:
        assert self._figures is not None
        self._figures.add(result)
        return result

    @property
    def _in_flight(self) -> int:
        """How many iterations are begun whose results have not been read."""
        if self._figures is None:
            return self.plan.job.prefetch
        return -(-self._run.in_flight // self._workers)

    def _next_pause(self) -> int:
        job, now = self.plan.job, self.iteration
        ends = [self.plan.iterations]
        for every in (job.save_every, job.test_every):
            ends.append(now // every * every + every if every else self.plan.next_epoch_end(now))
        if self._trace_end is not None:
            ends.append(self._trace_end)
        return min(ends)

    def _due(self, every: int | None) -> bool:
        """Whether something done every so many iterations (None: every epoch) is due now."""
        now = self.iteration
        if now == self.plan.iterations:
            return True
        return now % every == 0 if every else self.plan.next_epoch_end(now - 1) == now

    def _pause(self) -> Iterator[Event]:
        job = self.plan.job
        if self.iteration == self._trace_end:
            self._end_trace()
        if self.plan.test is not None and self._due(job.test_every):
            yield self._test()
        if self._due(job.save_every):
            yield self._save()

    def _log(self, result: Result) -> Trained:
        iteration = result.iteration + 1
        loss = sum(result[name] * weight for name, weight in self._weights.items())
        if self._overflows is not None:
            self._overflows.note(result, loss, self.folder)
        elif not math.isfinite(loss):
            what, expected = f"the loss is {loss} in iteration {iteration}", "a finite loss"
            remedy = "start again with another --out and a smaller --lr, a warm-up or --clip"
            remedy += self.folder.kept_text()
            raise RunError(what, expected, str(loss), remedy, where=str(self.folder.path))
        scale = None if self._overflows is None else result[LOSS_SCALE]
        event = Trained(iteration, self.plan.epoch(iteration), loss, result["lr"], scale)
        if self._figures is not None:
            own = self._figures.totals
            event = replace(event, staleness=self._figures.staleness, workers=own)
        every = self.plan.job.log_every
        assert every is not None
        if iteration % every == 0 or iteration == self.plan.iterations:
            self._append_metrics(event, result)
        return event

    def _append_metrics(self, event: Trained, result: Result) -> None:
        iteration, clock = self._logged
        seconds = self._training - clock
        samples = (event.iteration - iteration) * self.plan.samples_per_iteration
        row: dict[str, object] = {"iteration": event.iteration, "epoch": event.epoch}
        for name in self.plan.net.outputs:
            if name in result.outputs and result.outputs[name].numel() == 1:
                row[name] = result[name]
        row |= {"loss": event.loss, "lr": event.lr}
        if event.loss_scale is not None:
            row["loss_scale"] = event.loss_scale
        speed = samples / seconds if seconds > 0 else None
        row |= {**self._skipped, "images_per_second": speed, "seconds": self._training}
        if self._figures is not None:
            row["workers"] = self._figures.rows(seconds)
        self._write(row)
        self._logged = (event.iteration, self._training)

    def _write(self, row: Mapping[str, object]) -> None:
        self.folder.append_metrics(row)
        if self._events is not None:
            self._events.add(row)

    def _test(self) -> Tested:
        assert self.plan.test is not None
        self._doing = "measures the test set"
        loss, accuracy = results_of(self.plan.test, self._run.evaluate(self.plan.test))
        self._tested = Tested(self.iteration, self.plan.epoch(self.iteration), loss, accuracy)
        if loss is not None and not math.isfinite(loss):
            what = f"the test loss is {loss} after iteration {self.iteration}"
            why = "the weights are of no use, or the test data is not finite"
            remedy = "choose another --out and a smaller --lr, a warm-up or --clip"
            _log.warning("%s: %s; to start again, %s", what, why, remedy)
        row = {"iteration": self.iteration, "epoch": self._tested.epoch}
        self._write({**row, "test_loss": loss, "test_accuracy": accuracy})
        return self._tested

    def _save(self) -> Saved:
        self._doing = "saves a checkpoint"
        self.folder.flush_metrics()
        if self._events is not None:
            self._events.flush()
        seconds = {"seconds": self._seconds, "training_seconds": self._training}
        extra = {RUN: self._identity, **seconds, **self._skipped}
        path = self._run.save(self.folder.path, extra=extra, keep=self.plan.job.keep)
        self._saved = self.iteration
        return Saved(self.iteration, path)

    def _end_trace(self) -> None:
        """Write the trace and stop recording, so that the file stays small."""
        self._doing = "gathers the trace"
        trace = self._run.gathered_trace()
        if trace is not None and trace.events:  # without, the trace of an earlier process is kept
            trace.save(self.folder.trace_file)
        if isinstance(self._run, Run):
            self._run.close()
            self._run.record = False
        self._trace_end = None


def _with_overflow_flag(step: Graph) -> Graph:
    """The step with the flag of its loss scale (were the gradients finite?) among its outputs."""
    if FINITE not in step.blobs or FINITE in step.outputs:
        return step
    builder = Builder(step)
    builder.outputs.append(FINITE)
    return builder.graph()


class _Overflows:
    """Counts the iterations that a loss scale `skipped`; too many in a row end the job.

    One sample too large for float16 makes the loss NaN. The graph then keeps every weight and
    halves the scale, so the job goes on. Only the first loss that is not finite is logged.
    """

    def __init__(self) -> None:
        self.skipped = 0
        self._in_a_row = 0
        self._logged = False

    def note(self, result: Result, loss: float, folder: RunFolder) -> None:
        """Count an iteration; raises `RunError` if too many in a row overflowed."""
        updated = bool(result[FINITE])
        self.skipped += not updated
        if updated and math.isfinite(loss):
            self._in_a_row = 0
            return
        self._in_a_row += 1
        iteration, scale = result.iteration + 1, result[LOSS_SCALE]
        if self._in_a_row == _MOST_IN_A_ROW:
            raise RunError(
                f"{_MOST_IN_A_ROW} iterations in a row overflowed, the last of them {iteration}",
                "a finite loss and finite gradients, with a loss scale small enough",
                f"a loss of {loss} with a loss scale of {scale:g}",
                "look for samples too large for float16, or start again with another --out and "
                f"--precision bf16, a smaller --lr, a warm-up or --clip{folder.kept_text()}",
                where=folder.path,
            )
        if not math.isfinite(loss) and not self._logged:
            self._logged = True
            what = "its gradients are finite, so its update counts"
            if not updated:
                what = f"its update is skipped, and the loss scale of {scale:g} is halved"
            _log.warning("the loss is %s in iteration %d: %s", loss, iteration, what)


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
