"""A run: one graph, its data, its seed, and the values of its states.

The same seed gives the same bits, also when a run is resumed from a checkpoint.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Literal, NoReturn

import torch
from torch import Tensor

from purine.analysis.infer import check
from purine.arguments import at_least, checked
from purine.autodiff import reported_losses
from purine.data import DataSet, as_dataset
from purine.data.convert import DataLike
from purine.errors import ConfigError, RunError
from purine.graph import Graph
from purine.graph.names import copied_from, of_worker
from purine.lowering import Options, lower, options_for
from purine.machine.cores import cores_of, on_gpus
from purine.machine.heap import FIRST, tune_heap
from purine.machine.settings import tf32_of
from purine.machine.threads import release_host_pool
from purine.nearest import unknown_name
from purine.placement.values import gather_values, shard_values, shards_of
from purine.registry.clock import ITERATION, SEED
from purine.runtime import checkpoint, checkpoint_hosts
from purine.runtime import values as tensors
from purine.runtime.agreement import facts_of
from purine.runtime.checkpoint import Checkpoint
from purine.runtime.compute import means_over_test_set, outputs_over_test_set
from purine.runtime.couriers import couriers_of, is_courier, part_on, parts_on
from purine.runtime.exchange import Exchange
from purine.runtime.executor import Activity, Executor, Settings
from purine.runtime.feeding import data_ops, read_stream
from purine.runtime.fused_kernels import FusedKernels
from purine.runtime.greeter import Greeter, meet
from purine.runtime.program import compile_program
from purine.runtime.record import Record
from purine.runtime.result import Result, Results
from purine.runtime.run_checks import communicators_of, held_tf32, refuse_hosts, refuse_inputs
from purine.runtime.values import LARGEST_SEED, Values
from purine.runtime.worker_states import (
    begin_at,
    beside_net,
    each_worker,
    empty_record,
    for_all_workers,
    joined,
    past_of,
    refuse_workers,
    save_record,
)
from purine.runtime.workers import Reached, Workers
from purine.trace.clocks import clock_of
from purine.trace.gather import gather, shifted
from purine.trace.trace import Trace
from purine.transports.clock import Reading
from purine.transports.open_world import OpenWorld
from purine.transports.world import World, unheard

__all__ = ["Run"]

_MOST_PREFETCH = 10_000
_MOST_THREADS = 4096


class Run:
    """An execution of a training step, to be stepped, measured, saved and resumed.

    `data` is a data set, or anything that `purine.data.as_dataset` converts: tensors for the inputs
    of the net by position, a data set of PyTorch, a name.

    `prefetch` is how many iterations `Data` ops may be ahead. `threads` is the number of threads
    per kernel, by default the cores of the device. With `share_cores`, several devices may run on
    the same cores, or on the same GPU. `compiled` compiles fused ops: by default those on GPUs,
    otherwise all or none. With `tf32`, float32 products and convolutions on GPUs use TF32, which
    keeps 10 of 23 bits; without it they do not, whatever torch is set to. `record` keeps a trace of
    single ops, or of "segments", the groups of ops that are dispatched together without a trace.

    Of a graph with workers, `steps` returns iterations of any worker as they complete. `replay` is
    what `record_of_updates` of an earlier run returned: it happens again, to the same bits.

    A checkpoint of a sharded net holds whole states, so it fits any scheme of parallelism. A run
    belongs to the process that made it: a forked child makes its own. Threads may share a run;
    their calls take turns, and each result of `steps` goes to one of them. `purine.machine.effects`
    lists what a run changes in the whole process.

    >>> import purine as pu
    >>> net = pu.zoo.mlp(batch=32)
    >>> data = pu.data.fashion_mini()
    >>> step = pu.solvers.sgd(pu.backward(pu.data.prepare(net, data.train)), lr=0.1)
    >>> with pu.Run(step, data=data, seed=0) as run:
    ...     losses = [result.loss for result in run.steps(20)]
    >>> losses[-1] < losses[0]
    True
    """

    @checked
    def __init__(
        self,
        graph: Graph,
        *,
        data: DataLike | None = None,
        seed: int = 0,
        prefetch: int = 2,
        threads: int | None = None,
        share_cores: bool = False,
        compiled: bool | None = None,
        tf32: bool = False,
        record: bool | Literal["segments"] = False,
        world: World | None = None,
        replay: Record | None = None,
    ) -> None:
        at_least("prefetch", prefetch, 0, _MOST_PREFETCH)
        at_least("seed", seed, 0, LARGEST_SEED)
        if threads is not None:
            at_least("threads", threads, 1, _MOST_THREADS)
        self.graph = check(graph)
        if not self.graph.ops:
            remedy = "build a net first"
            raise ConfigError("the graph has no ops", "at least one op", "none", remedy)
        self.data: DataSet | None = None if data is None else as_dataset(data)
        self.seed = seed
        self.credit = prefetch + 1
        self.threads = threads
        self.record = record
        self.world = world
        self._part = part = part_on(self.graph, None if world is None else world.host)
        """What runs here: the graph, or this host's part of it."""
        refuse_hosts(self.graph, world)
        cores = cores_of(part, threads=threads, share=share_cores)
        held = held_tf32(part, tf32, needed=on_gpus(part) or not on_gpus(self.graph))
        self._settings = Settings(self.credit, threads, cores, held, bool(record))
        self._gpus = on_gpus(part)
        self._parts = parts_on(self.graph, None if world is None else world.host)
        """The graphs of the workers here, by number, where the graph has any. Couriers have ops on
        two hosts."""
        self._replay = replay
        refuse_workers(self.graph, world, replay)
        if replay is not None:
            self._settings = replace(self._settings, credit=replay.credit)
        own = sum(not is_courier(part) for part in self._parts.values())
        self._ahead = self._settings.credit * max(1, own)
        """How many iterations may be in flight."""
        self._losses = tuple(dict.fromkeys(map(of_worker, reported_losses(self.graph))))
        self._sources = read_stream(part, self.data)
        self._fused = FusedKernels(compiled)
        if world is not None:
            facts = facts_of(self.data, seed=seed, prefetch=prefetch)
            world.compare({**facts, "record": str(record)})
            world.compare_step(self.graph)
        self._begin()
        self._heap = None if self._gpus else tune_heap(self.graph)
        """How to use malloc once the first iterations are complete; None from then on."""
        self._mapping = FIRST
        """How many of the first iterations are left."""

    def _begin(self) -> None:
        """The state of a run before its first step."""
        self._process = os.getpid()
        self._turn = threading.RLock()  # held by the thread whose call is being served
        self.iteration = 0
        """The iteration of the next result of `steps`."""
        self._unread: dict[int, Result] = {}
        """Results of iterations that were in flight when the lanes ended."""
        self._executor: Executor | Workers | None = None
        """Runs the lanes and holds the states, from the first step until the run is closed."""
        self._reached, self._states = Reached(), dict[str, Tensor]()
        """Without lanes: the number of complete iterations, and the states after them. A state
        that is missing has the value of its filler."""
        self.greeter: Greeter | None = None
        """At the server: lets workers join."""
        self._past: Record | None = None
        """What workers did before the lanes last began."""
        self._recorded = Trace()
        self._readings: list[Reading] = []
        """The clock of this host against that of the first, each time that recording began."""
        self._failure: RunError | None = None

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: type[BaseException] | None, *details: object) -> None:
        if self.world is not None and kind is not None and self._executor is not None:
            # The other hosts may never complete the iterations in flight here.
            what = f"the run on several hosts was left by {kind.__name__}"
            expected = "all hosts to close their runs at the same iteration"
            found, remedy = f"{kind.__name__} on this one", "load the last checkpoint on all hosts"
            self._failure = self._failure or RunError(what, expected, found, remedy)
            self._end_lanes()
        self.close()

    @checked
    def steps(self, count: int) -> Iterator[Result]:
        """Run `count` iterations and yield their results in order, of workers as they complete.

        Up to `prefetch` later iterations are in flight while the caller reads a result. Values that
        `set_states` sets meanwhile are seen by the iterations after those.
        """
        at_least("the number of steps", count, 0)
        self._refuse_fork()
        release_host_pool()
        return Results(self._step, count, before=self._refuse_fork)

    def steps_while(self, allowed: Callable[[], int]) -> Iterator[Result]:
        """Run iterations while `allowed` permits more to begin; it ends when that returns 0.

        Iterations in flight then continue, and are the first of the next call.
        """
        self._refuse_fork()
        release_host_pool()
        while (left := allowed()) > 0:
            yield self._step(left)

    def _step(self, left: int) -> Result:
        """The next of `left` results that the caller still wants."""
        with self._serving():
            result = self._unread.pop(self.iteration, None)
            if result is None:
                executor = self._started()
                executor.extend(self.iteration + min(left, self._ahead))
                with self._noting_failure():
                    result = self._result(executor, self.iteration)
            self.iteration += 1
            self._mapping -= 1
            if self._heap is not None and self._mapping <= 0:
                self._heap.settle()
                self._heap = None
            return result

    def _result(self, executor: Executor | Workers, iteration: int) -> Result:
        if isinstance(executor, Workers):
            done, values = executor.wait()
            outputs = {of_worker(name): value for name, value in values.items()}
            measured = (done.worker, done.iteration, done.staleness, done.missed)
            return Result(iteration, outputs, self._losses, *measured)
        outputs = executor.wait(iteration)
        if self.world is not None:
            own = self.graph.outputs
            outputs = {n if n in own else copied_from(n): v for n, v in outputs.items()}
        return Result(iteration, outputs, self._losses)

    @property
    def in_flight(self) -> int:
        """The number of iterations that have begun and whose results were not read."""
        executor = self._executor
        return len(self._unread) if executor is None else executor.core.opened - self.iteration

    def activity(self) -> Activity:
        """The running ops and the waits of the run at this moment; any thread may ask at any
        time."""
        executor = self._executor
        return Activity(self.iteration) if executor is None else executor.activity()

    def states(self) -> dict[str, Tensor]:
        """Copies of all states, after the iterations in flight are complete.

        On several hosts, all of them call this: each has only its own states until then.
        """
        with self._serving():
            states = self._gathered(self._settled()[1], self.graph.states)
            shared = {id(value): value.clone() for value in states.values()}
            copies = {name: shared[id(value)] for name, value in states.items()}
            if self._gpus:  # later iterations overwrite the originals, on other streams
                torch.cuda.synchronize()
            return copies

    @checked
    def set_states(self, values: Values) -> None:
        """Replace the values of the named states, for example by pretrained parameters.

        A sharded state may be named as a whole: its value is cut. Values may also be numpy arrays,
        lists and numbers; they are copied. Iterations in flight complete with the old values. The
        filler of a state that is set before the first step never draws.
        """
        with self._serving():
            if self._failure is not None:
                raise self._failure
            whole = {name: tensors.as_tensor(self.graph, name, values[name]) for name in values}
            given = shard_values(self.graph, whole)
            known, remedy = self.graph.states, "see run.graph.states for the names"
            for name in given.keys() - known.keys():
                expected = "the name of a state of the graph"
                raise unknown_name(RunError, "state", name, known, expected=expected, remedy=remedy)
            for name, value in given.items():
                tensors.check_value(self.graph, name, value)
            given = for_all_workers(self.graph, given)
            if self._executor is not None:
                iteration, states = self._settled()
                if self.world is not None:  # others may still wait for what is on its way
                    self.world.barrier()
                self._keep_results()
                kept = {name: value for name, value in states.items() if name not in given}
                del states  # `_restart` frees each state once it is copied
                self._restart(self._reached_now(iteration), kept)
            for name, value in given.items():
                if name in self._part.states:
                    self._states[name] = value.clone()

    @checked
    def evaluate(self, graph: Graph, *, data: DataLike | None = None) -> dict[str, float]:
        """The means of a graph's scalar outputs over the whole test set, each sample counted once.

        `graph` is what `purine.evaluation(net)` returns. Its states have the values of this run's,
        also where the run's are sharded and those of `graph` are whole. `data` replaces the test
        part of the run's data.

        Several hosts measure a share of the test set each; all get the means over the whole.
        """
        with self._serving():
            graph = check(graph)
            tested = self.data if data is None else as_dataset(data, test=data)
            values, settings = self._for_measuring(graph)
            shared = None if self._parts else self.world
            return means_over_test_set(graph, tested, values, self.seed, settings, world=shared)

    @checked
    def predictions(self, graph: Graph) -> Iterator[Mapping[str, Tensor]]:
        """The outputs of a graph for each batch of the test set, in the order of its samples.

        As for `evaluate`, but outputs may have any shape. The last batch may be smaller. One host
        computes all of them.
        """
        with self._serving():
            graph = check(graph)
            if self.data is None or self.data.test is None or not data_ops(graph):
                what, expected = "there is nothing to predict", "data with a test part"
                remedy = "give the run data with a test part, and a graph with a Data op"
                raise ConfigError(what, expected, "none", remedy)
            values, settings = self._for_measuring(graph)
        batches = outputs_over_test_set(graph, self.data, values, self.seed, settings)
        return (outputs for _, outputs in batches)

    def _for_measuring(self, graph: Graph) -> tuple[dict[str, Tensor], Settings]:
        """The values of this run for the states of another graph, and the settings of its
        execution."""
        shards = shards_of(self.graph)
        wanted = [
            name
            for name in self.graph.states
            if name in graph.states or (name in shards and shards[name][0] in graph.states)
        ]
        states = self._gathered(self._settled()[1], wanted)
        values = {**states, **gather_values(self.graph, states)}
        cores = {core for own in self._settings.cores.values() for core in own}
        tf32 = tf32_of(graph, bool(self._settings.tf32))
        return values, Settings(self.credit, len(cores) or self.threads, tf32=tf32)

    @checked
    def save(
        self,
        folder: Path | str,
        *,
        extra: Mapping[str, object] | None = None,
        keep: int = 2,
        iteration: int | None = None,
    ) -> Path:
        """Complete the iterations in flight and write a checkpoint under `folder`.

        The newest `keep` checkpoints stay there. `extra` is stored in the manifest. Several hosts
        write at the same time, each its own states, to a folder that they share. The server of
        workers on other hosts may know better which `iteration` it is, of all workers together.
        """
        at_least("keep", keep, 1)
        with self._serving():
            known, (iteration, values) = iteration, self._settled()
            if self.world is not None and not self._parts:
                return checkpoint_hosts.save(
                    Path(folder),
                    world=self.world,
                    step=self.graph,
                    iteration=iteration,
                    values=values,
                    seed=self.seed,
                    extra=extra,
                    keep=keep,
                )
            whole = gather_values(self.graph, values)
            if self._parts and self.world is not None:
                shared = {state.shared for state in self._part.states.values()}
                whole = {name: value for name, value in whole.items() if name in shared}
                carried = self._reached.all + self._served().carried
                iteration = carried if known is None else known
                whole |= {SEED: torch.tensor(self.seed), ITERATION: torch.tensor(iteration)}
            else:
                each = self._reached_now(iteration).each if self._parts else ()
                whole |= beside_net(self.graph, values, each)
            if self._parts and self.world is None:
                save_record(self._record_now(), Path(folder))
            return checkpoint.save(
                Path(folder),
                iteration=iteration,
                values={name: value.cpu() for name, value in whole.items()},
                seed=self.seed,
                digest=self.graph.digest,
                extra=extra,
                keep=keep,
            )

    @checked
    def load(self, folder: Path | str) -> int:
        """Resume from a checkpoint, or from the newest of a run folder; returns its iteration.

        A host reads only the states that it needs.
        """
        with self._serving():
            read: list[Checkpoint] = []

            def load() -> str:
                step = self._part if self._parts else self.graph
                read.append(checkpoint.load(Path(folder), step=step, names=self._part.states))
                return ""

            if self.world is None:
                load()
            else:
                self.world.jointly(load, op="load")
                self.world.compare({"checkpoint": f"iteration {read[0].iteration}"})
            (saved,) = read
            self.seed = saved.seed
            self._failure = None
            each = each_worker(saved.path, saved.forms, len(self._parts)) if self._parts else ()
            if isinstance(self.world, OpenWorld):
                self.world.begin = saved.iteration // couriers_of(self.graph)
            self._restart(Reached(saved.iteration, each), dict(saved.values))
            if self._parts:
                self._past = past_of(saved, self.graph.digest)
            self._unread.clear()
            self.iteration = saved.iteration
            return saved.iteration

    @property
    def trace(self) -> Trace:
        """The events on this host since the run was created; none without `record`."""
        if self._executor is not None:
            return self._recorded + self._executor.trace()
        return self._recorded

    @property
    def record_of_updates(self) -> Record:
        """The record of the workers since the start: `Run(graph, replay=...)` repeats it bit for
        bit.

        It completes the iterations in flight. A run that resumes from a checkpoint has the record
        from the start if it is next to the checkpoint, and otherwise from there on.
        """
        with self._serving():
            self._settled()
            if not self._parts:
                what, expected = "the run has no record of updates", "a graph with workers"
                remedy = "its results are the same each time anyway"
                raise RunError(what, expected, "a graph without", remedy)
            return self._record_now()

    def _record_now(self) -> Record:
        now = self._executor.record if isinstance(self._executor, Workers) else None
        return joined(self._past, now) or empty_record(
            self.graph, self._reached, tuple(self._parts.values())
        )

    def gathered_trace(self) -> Trace | None:
        """The events of all hosts since the run was created, on the clock of the first host.

        It completes the iterations in flight. On several hosts all call it at the same iteration:
        the first gets the trace, the others None.
        """
        with self._serving():
            if self.world is not None and self._failure is not None:
                raise self._failure  # the other hosts do not come here
            if self._executor is not None:
                with self._noting_failure():
                    self._executor.drain()
            if self.world is None:
                return self.trace
            readings = [*self._readings, self.world.clock()]
            return gather(self.world, self.trace, readings)

    def end_trace(self) -> Trace:
        """The events of the workers on this host since the start, on the clock of the server.

        From now on nothing is recorded. The run goes on meanwhile.
        """
        with self._serving():
            self.record = False
            if isinstance(self._executor, Workers):
                self._recorded += self._executor.end_trace()
            trace, self._recorded = self._recorded, Trace()
            readings = self._readings or [Reading(0, 0, 0)]
            clocks = () if self.world is None else (clock_of(self.world.host, readings),)
            return replace(shifted(trace, readings), clocks=clocks)

    def close(self) -> None:
        """Complete the iterations in flight and end the threads of the run.

        A closed run can still be read, saved and stepped again. After the failure of an op it
        cannot, since its states belong to no iteration; `load` makes it usable again. Several hosts
        close their runs together. Each keeps its own states: what needs those of others (`states`,
        `evaluate`) still works as long as the world is open.
        """
        if os.getpid() != self._process:  # a forked child has no lanes to end
            return
        with self._serving():
            if self._executor is not None:
                try:
                    completed, self._states = self._settled()
                    self._reached = self._reached_now(completed)
                    self._keep_results()
                    if self.world is not None:  # others may still wait for what is on its way
                        self.world.barrier()
                except RunError as error:
                    self._failure = error
                self._end_lanes()

    def __reduce__(self) -> NoReturn:
        expected, found = "a run in the process that made it", "a call of copy or pickle"
        remedy = "send run.graph and run.states(), and make a run of them there"
        raise RunError("a run cannot be copied or sent to another process", expected, found, remedy)

    @contextmanager
    def _serving(self) -> Iterator[None]:
        """Let one thread at a time use the run, in the process that made it."""
        self._refuse_fork()
        with self._turn:
            yield

    def _refuse_fork(self) -> None:
        if os.getpid() != self._process:
            expected = f"calls in process {self._process}, which made the run"
            found = f"process {os.getpid()}, forked from it: lanes do not survive a fork"
            remedy = "make a Run in the child; save and load carry states over"
            raise RunError("the run belongs to another process", expected, found, remedy)

    def _settled(self) -> tuple[int, dict[str, Tensor]]:
        """Wait for the iterations in flight; the number of complete ones and the states then.

        These are the states of this host.
        """
        if self._failure is not None:
            raise self._failure
        if self._executor is None:
            self._states = tensors.initial_states(self._part, self.seed, self._states)
            return self._reached.all, self._states
        with self._noting_failure():
            completed = self._executor.drain()
        return completed, self._executor.states()

    def _gathered(self, own: Mapping[str, Tensor], names: Collection[str]) -> Mapping[str, Tensor]:
        """The values of the named states, including those of other hosts."""
        if self.world is None or self._parts:
            return own
        return self.world.gather(self.graph, own, list(names))

    @contextmanager
    def _noting_failure(self) -> Iterator[None]:
        try:
            yield
        except RunError as error:
            self._failure = error
            raise

    def _keep_results(self) -> None:
        """Keep the results that `steps` has not yielded yet; nothing is in flight."""
        assert self._executor is not None
        for iteration in range(self.iteration, self._executor.core.completed):
            self._unread[iteration] = self._result(self._executor, iteration)

    def _reached_now(self, completed: int) -> Reached:
        """The complete iterations; none is in flight."""
        if isinstance(self._executor, Workers):
            return self._executor.reached
        return self._reached if self._executor is None else Reached(completed)

    def _restart(self, reached: Reached, values: dict[str, Tensor]) -> None:
        """Continue from copies of `values`, which is emptied to free each value once copied."""
        self._end_lanes()
        self._states = {}
        for name in list(values):
            value = values.pop(name)
            if name in self._part.states:
                self._states[name] = value.clone()
        self._reached = reached

    def _end_lanes(self) -> None:
        if self._executor is not None:
            executor, self._executor = self._executor, None
            self._abandoned.detach()
            if self.greeter is not None:
                self.greeter.close()
                self.greeter = None
            executor.close()
            if isinstance(executor, Workers):
                self._past = joined(self._past, executor.record)
            if self.world is not None:
                self.world.losses = unheard
            self._recorded += executor.trace()

    def serve(self, until: Callable[[Run], bool], *, look: float = 0.05) -> None:
        """Serve workers on other hosts, which may join and leave, until a condition holds.

        `until` is called at intervals. The run is that of a server: its world is
        `OpenWorld.serving`. It is not closed here, so its states can still be read.
        """
        workers = self._served()
        while not until(self):
            with self._noting_failure():
                workers.pause(look)

    @property
    def versions(self) -> dict[str, int]:
        """The number of updates of each shared state, including those of workers that are gone."""
        return self._served().core.versions()

    @property
    def rounds(self) -> int:
        """The number of rounds that the couriers of all workers have completed here."""
        return self._served().core.rounds

    @property
    def rounds_begun(self) -> int:
        """The number of rounds that the present couriers have begun here, each since it started."""
        return self._served().begun

    def _served(self) -> Workers:
        with self._serving():
            workers = self._started()
        if not isinstance(workers, Workers):
            what, expected = "the run has no workers", "a graph of parallel.serve"
            raise RunError(what, expected, "another graph", "call steps")
        return workers

    def _started(self) -> Executor | Workers:
        """What runs the lanes, which begin now at the latest."""
        if self._failure is not None:
            raise self._failure
        if self._executor is None:
            refuse_inputs(self._part)
            self._settled()
            for name, value in self._states.items():
                self._states[name] = tensors.at_home(self._part, name, value)
            settings = replace(self._settings, record=bool(self.record))
            single = self.record not in (False, "segments")
            begun = self._workers if self._parts else self._lanes
            self._executor = executor = begun(settings, single)
            self._abandoned = weakref.finalize(self, executor.close)
            self._abandoned.atexit = False
            self._states = {}
            if isinstance(self.world, OpenWorld) and isinstance(executor, Workers):
                self.greeter = meet(executor, self.world, self.graph.digest)
                if self.world.traced and self.record:
                    self._readings.append(self.world.clock())
            elif self.world is not None and self.record:
                with self._noting_failure():
                    self._readings.append(self.world.clock())
        return self._executor

    def _workers(self, settings: Settings, single: bool) -> Workers:
        """The lanes of all workers here; with `single` they run ops one by one."""
        reached, replay, world = self._reached, self._replay, self.world
        if replay is not None:
            replay = replay.split(reached.all)[1]
        if isinstance(world, OpenWorld) and world.begin:
            reached = self._reached = begin_at(world.begin, self._parts, self._states, reached)
        return Workers(
            self._parts,
            self._states,
            self._sources,
            settings,
            single=single,
            digest=self.graph.digest,
            reached=reached,
            replay=replay,
            host="" if world is None else world.host,
        )

    def _lanes(self, settings: Settings, single: bool) -> Executor:
        """The lanes of a graph without workers."""
        graph, world, sources, states = self.graph, self.world, self._sources, self._states
        host, exchange = None if world is None else world.host, None
        lowered = lower(graph, Options(host=host) if single else options_for(graph, host))
        if world is not None:
            plain = lowered.unsegmented or lowered.graph
            world.barrier()
            transport, groups = world.transport(), communicators_of(graph, world)
            exchange = Exchange(plain, world.host, world.peers, transport, communicators=groups)
            sources = {**sources, **exchange.kernels}
            states = {name: states[name] for name in plain.states}
        program = compile_program(lowered, sources, fused=self._fused)
        if world is not None and exchange is not None:
            world.barrier()  # transports wait for a minute, and others may still compile
            world.losses = exchange.losses
        start = self._reached.all
        return Executor(program, states=states, start=start, settings=settings, exchange=exchange)
