"""A run: one graph, its data, its seed, and the values of its states.

The same seed gives the same bits, whatever the interleaving; a run that is resumed from a
checkpoint goes on with the bits of one that was never interrupted.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NoReturn, TypeAlias

import numpy as np
import torch
from torch import Tensor

from purine.analysis.infer import check, with_batch
from purine.arguments import at_least, checked, shown
from purine.autodiff import reported_losses
from purine.compile.fused import FusedKernel, as_kernel, captured, compiled
from purine.data import DataSet, as_dataset
from purine.data.convert import DataLike
from purine.errors import ConfigError, RunError, in_a_line
from purine.graph import Graph, Op
from purine.lowering import Options, lower, options_for
from purine.machine.cores import cores_of
from purine.machine.heap import tune_heap
from purine.machine.threads import release_host_pool
from purine.nearest import nearest_name
from purine.placement.values import gather_values, shard_values
from purine.registry.aten import device_of, dtype_name, dtype_of
from purine.registry.clock import ITERATION, SEED
from purine.registry.fillers import fill
from purine.registry.kind import Kernel
from purine.registry.lookup import lookup
from purine.runtime import checkpoint
from purine.runtime.executor import Executor, Settings
from purine.runtime.feeding import batch_of, data_ops, pinned, read_rows, read_stream
from purine.runtime.layout import laid_out
from purine.runtime.program import compile_program
from purine.runtime.streams import is_gpu
from purine.trace.trace import Trace

__all__ = ["Result", "Run", "compute"]


Values: TypeAlias = Mapping[str, Any]
"""Tensors by the names of their blobs; numpy arrays, lists and numbers pass for tensors."""

_MOST_SEED = 2**63 - 1
"""The seed is a blob of int64."""

_MOST_PREFETCH = 10_000
_MOST_THREADS = 4096


@dataclass(frozen=True, slots=True)
class Result:
    """What one iteration gave: the blobs that the graph lists as outputs.

    `losses` are the names of those that are minimised.
    """

    iteration: int
    outputs: Mapping[str, Tensor]
    losses: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> float:
        value = self.outputs.get(name)
        if value is None or value.numel() != 1:
            raise ConfigError(
                f"the iteration has no number {name!r}",
                blob=name if isinstance(name, str) else None,
                expected=f"one of {', '.join(self.outputs) or 'no outputs'}",
                found=shown(name) if value is None else f"shape {list(value.shape)}",
                remedy="let the net report it with Net.output"
                if value is None
                else f"read the tensor: result.outputs[{name!r}]",
            )
        return float(value)

    @property
    def loss(self) -> float:
        """The value of blob `loss`, or of the only loss that is reported under another name."""
        if "loss" in self.outputs:
            return self["loss"]
        if len(self.losses) == 1:
            return self[self.losses[0]]
        several = bool(self.losses)
        raise ConfigError(
            f"the net reports {len(self.losses)} losses, none of them as 'loss'",
            expected="an output 'loss', or a single loss",
            found=", ".join(self.losses or self.outputs) or "no outputs",
            remedy=f"name one: result[{self.losses[0]!r}]" if several else "read result.outputs",
        )


class Run:
    """An execution of a training step, to be stepped, measured, saved and resumed.

    `prefetch` is how many iterations `Data` ops may be ahead. `threads` is the number of threads
    that one kernel may use: the number of cores of a device, where the graph is on several, which
    may `share_cores` where there are too few, and so may GPUs. `record` keeps a trace: of single
    ops, or of the "segments" that they are dispatched in where nothing is recorded. Fused ops are
    `compiled` where they are on a GPU, unless this says always or never. With `tf32` products and
    convolutions of float32 numbers on GPUs are in TF32, which keeps 10 bits of 23; without it they
    are not, whatever torch is set to.

    Where the net is sharded, what is saved has its states whole, so that it fits any scheme; what
    is loaded and set may be whole or in shards.

    `data` is a data set, or anything that `purine.data.as_dataset` makes one of: tensors for the
    inputs of the net by position, a data set of PyTorch, a name.

    A run belongs to the process that made it: a forked child makes its own. Threads may share a
    run; their calls take turns, and each result of `steps` goes to one of them.

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
    ) -> None:
        at_least("prefetch", prefetch, 0, _MOST_PREFETCH)
        at_least("seed", seed, 0, _MOST_SEED)
        if threads is not None:
            at_least("threads", threads, 1, _MOST_THREADS)
        self._process = os.getpid()
        self._turn = threading.RLock()
        """Held by the thread whose call is being served."""
        self.graph = check(graph)
        if not self.graph.ops:
            raise ConfigError(
                "the graph has no ops",
                expected="at least one op",
                found="none",
                remedy="build a net first",
            )
        self.data: DataSet | None = None if data is None else as_dataset(data)
        self._losses = reported_losses(self.graph)
        self.seed = seed
        self.credit = prefetch + 1
        self.threads = threads
        self._cores = cores_of(self.graph, threads=threads, share=share_cores)
        self.record = record
        self.compiled = compiled
        self._compiled: dict[str, FusedKernel] = {}
        self._gpus = _on_gpus(self.graph)
        if tf32 and not self._gpus:
            raise ConfigError(
                "tf32 is asked for, and no op is on a GPU",
                expected="a graph with ops on GPUs, which have TF32",
                found="devices "
                + ", ".join(sorted({op.location.device for op in self.graph.ops.values()})),
                remedy="leave tf32 out, or move the graph: pu.to_device(graph, 'cuda:0')",
            )
        self._tf32 = tf32 if self._gpus else None
        self.iteration = 0
        """The next iteration whose result `steps` gives."""
        self._unread: dict[int, dict[str, Tensor]] = {}
        """Results of iterations that were in flight when lanes ended."""
        self._reached = 0
        """The iteration that `_states` are of, while there are no lanes."""
        self._states: dict[str, Tensor] = {}
        """The states while there are no lanes; those missing have the values of their fillers."""
        self._sources = self._reading(read_stream(self.graph, self.data))
        self._executor: Executor | None = None
        self._recorded = Trace()
        self._failure: RunError | None = None
        if not self._gpus:
            tune_heap(self.graph)

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @checked
    def steps(self, count: int) -> Iterator[Result]:
        """Run `count` iterations and give their results in order.

        Later iterations are in flight while a result is looked at, as far as the credit goes: what
        `set_states` sets meanwhile is for those behind them.
        """
        at_least("the number of steps", count, 0)
        self._refuse_fork()
        release_host_pool()
        return _Steps(self, count)

    def _step(self, left: int) -> Result:
        """The next result; `left` more are asked for, this one among them."""
        with self._serving():
            outputs = self._unread.pop(self.iteration, None)
            if outputs is None:
                executor = self._started()
                executor.extend(self.iteration + min(left, self.credit))
                with self._noting_failure():
                    outputs = executor.wait(self.iteration)
            self.iteration += 1
            return Result(self.iteration - 1, outputs, self._losses)

    def states(self) -> dict[str, Tensor]:
        """Copies of all states, after the iterations in flight are complete."""
        with self._serving():
            found = {name: value.clone() for name, value in self._settled()[1].items()}
            if self._gpus:  # later iterations write over the originals, on streams of their own
                torch.cuda.synchronize()
            return found

    @checked
    def set_states(self, values: Values) -> None:
        """Put values in place of the states named, for example parameters from elsewhere.

        A state that is sharded can be named as a whole: its value is cut. Values may also be numpy
        arrays, lists and numbers. The iterations in flight are completed before, with the old
        values. The values are copied one by one, and nothing is drawn for states that are set
        before they are read.
        """
        with self._serving():
            if self._failure is not None:
                raise self._failure
            given = {name: _as_tensor(self.graph, name, item) for name, item in values.items()}
            tensors = shard_values(self.graph, given)
            for name, value in tensors.items():
                if name not in self.graph.states:
                    raise RunError(
                        f"there is no state {name!r}",
                        blob=name,
                        expected="the name of a state of the graph",
                        found=repr(name),
                        remedy=nearest_name(
                            name, self.graph.states, "see run.graph.states for the names"
                        ),
                    )
                _check_value(self.graph, name, value)
            if self._executor is not None:
                iteration, states = self._settled()
                self._keep_results()
                kept = {name: value for name, value in states.items() if name not in tensors}
                del states  # so that each is let go once it is copied
                self._restart(iteration, kept)
            for name, value in tensors.items():
                self._states[name] = value.clone()

    @checked
    def evaluate(self, graph: Graph, *, data: DataLike | None = None) -> dict[str, float]:
        """The means of a graph's scalar outputs over the whole test set, each sample counted once.

        `graph` is what `purine.evaluation(net)` gives: its parameters are this run's, also where
        the run's are sharded and those of `graph` are whole. `data` is what to test on, in place of
        the test part of the run's data.
        """
        with self._serving():
            tested = self.data if data is None else as_dataset(data, test=data)
            return self._evaluate(check(graph), tested)

    def _evaluate(self, graph: Graph, data: DataSet | None) -> dict[str, float]:
        sources = data_ops(graph)
        if not sources or data is None or data.test is None:
            raise ConfigError(
                "there is nothing to evaluate on",
                expected="a graph with a Data op, and data with a test part",
                found=f"{len(sources)} Data ops, data {data.name if data else None!r}",
                remedy="give data with a test part, as pu.data.tensors(x, y, test=(...)), or "
                "run.evaluate(graph, data=...)",
            )
        for name in graph.outputs:
            if torch.Size(graph.blobs[name].shape or ()).numel() != 1:
                raise ConfigError(
                    f"output {name!r} has no mean over the test set",
                    where=graph.blobs[name].where,
                    blob=name,
                    expected="outputs that are single numbers",
                    found=f"shape {list(graph.blobs[name].shape or ())}",
                    remedy=f"leave {name!r} out of the outputs: pu.evaluation(net, ['loss'])",
                )
        batch, count = batch_of(graph, sources[0]), len(data.test)
        own = self._settled()[1]
        values = {**own, **gather_values(self.graph, own)}
        totals = dict.fromkeys(graph.outputs, 0.0)
        for size, start, times in (
            (batch, 0, count // batch),
            (count % batch, count - count % batch, 1),
        ):
            if size and times:
                part = graph if size == batch else with_batch(graph, size)
                for name, total in self._sum(part, data, values, start, times).items():
                    totals[name] += total * size
        return {name: total / count for name, total in totals.items()}

    @checked
    def save(
        self, folder: Path | str, *, extra: Mapping[str, object] | None = None, keep: int = 2
    ) -> Path:
        """Write a checkpoint under `folder`, after completing the iterations in flight.

        The newest `keep` checkpoints stay there; `extra` is stored in the manifest.
        """
        at_least("keep", keep, 1)
        with self._serving():
            iteration, values = self._settled()
            whole = gather_values(self.graph, values)
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
        """Go on from a checkpoint, or from the newest of a run folder; returns its iteration."""
        with self._serving():
            saved = checkpoint.load(Path(folder))
            saved = replace(saved, values=shard_values(self.graph, saved.values))
            checkpoint.match(saved, self.graph)
            self.seed = saved.seed
            self._failure = None
            self._restart(saved.iteration, dict(saved.values))
            self._unread.clear()
            self.iteration = saved.iteration
            return saved.iteration

    @property
    def trace(self) -> Trace:
        """What was recorded since the run was made; empty without `record`."""
        if self._executor is not None:
            return self._recorded + self._executor.trace()
        return self._recorded

    def close(self) -> None:
        """End the lanes, after the iterations in flight.

        A run that is closed can still be read, saved and stepped again, unless an op failed: its
        states are then those of no iteration, and only `load` makes it usable again.
        """
        if os.getpid() != self._process:  # a forked child has no lanes to end
            return
        with self._serving():
            if self._executor is not None:
                try:
                    self._reached, self._states = self._settled()
                    self._keep_results()
                except RunError as error:
                    self._failure = error
                self._end_lanes()

    def __reduce__(self) -> NoReturn:
        raise RunError(
            "a run cannot be copied or sent to another process",
            expected="a run in the process that made it",
            found="a call of copy or pickle",
            remedy="send run.graph and run.states(), and make a run of them there",
        )

    @contextmanager
    def _serving(self) -> Iterator[None]:
        """The turn of the calling thread, in the process of the run."""
        self._refuse_fork()
        with self._turn:
            yield

    def _refuse_fork(self) -> None:
        if os.getpid() != self._process:
            raise RunError(
                "the run belongs to another process",
                expected=f"calls in process {self._process}, which made the run",
                found=f"process {os.getpid()}, forked from it: lanes do not survive a fork",
                remedy="make a Run in the child; save and load carry states over",
            )

    def _settled(self) -> tuple[int, dict[str, Tensor]]:
        """The number of complete iterations and the states behind them, with nothing in flight."""
        if self._failure is not None:
            raise self._failure
        if self._executor is None:
            self._states = initial_states(self.graph, self.seed, self._states)
            return self._reached, self._states
        with self._noting_failure():
            completed = self._executor.drain()
        return completed, self._executor.states()

    @contextmanager
    def _noting_failure(self) -> Iterator[None]:
        try:
            yield
        except RunError as error:
            self._failure = error
            raise

    def _keep_results(self) -> None:
        """Take what `steps` has still to give from lanes with nothing in flight."""
        if self._executor is not None:
            for iteration in range(self.iteration, self._executor.core.completed):
                self._unread[iteration] = self._executor.wait(iteration)

    def _restart(self, iteration: int, values: dict[str, Tensor]) -> None:
        """Go on from copies of these values, which are taken out of `values` one by one."""
        self._end_lanes()
        self._states = {}
        for name in list(values):
            value = values.pop(name)
            if name in self.graph.states:
                self._states[name] = value.clone()
        self._reached = iteration

    def _end_lanes(self) -> None:
        if self._executor is not None:
            executor, self._executor = self._executor, None
            self._abandoned.detach()
            executor.close()
            self._recorded += executor.trace()

    def _started(self) -> Executor:
        if self._failure is not None:
            raise self._failure
        if self._executor is None:
            self._refuse_inputs()
            self._settled()
            for name, value in self._states.items():
                self._states[name] = _at_home(self.graph, name, value)
            single = self.record not in (False, "segments")
            lowered = lower(self.graph, Options() if single else options_for(self.graph))
            self._executor = Executor(
                compile_program(lowered, self._sources, fused=self._fused),
                states=self._states,
                start=self._reached,
                settings=Settings(
                    credit=self.credit,
                    threads=self.threads,
                    cores=self._cores,
                    tf32=self._tf32,
                    record=bool(self.record),
                ),
            )
            self._abandoned = weakref.finalize(self, self._executor.close)
            self._abandoned.atexit = False
            self._states = {}
        return self._executor

    def _refuse_inputs(self) -> None:
        """A graph that has to be fed may hold states, and is not run."""
        if self.graph.inputs:
            name = self.graph.inputs[0]
            raise ConfigError(
                f"nothing makes blob {name!r}",
                where=self.graph.blobs[name].where,
                blob=name,
                expected="a step whose batches come from a Data op",
                found=f"inputs {', '.join(self.graph.inputs)}",
                remedy="let the net begin with a Data op, or feed it: "
                f"pu.compute(graph, {{{name!r}: ...}})",
            )

    def _reading(self, sources: Mapping[str, Kernel]) -> Mapping[str, Kernel]:
        """Kernels that read batches, into memory that GPUs can fetch them from."""
        if not self._gpus:
            return sources
        return {name: pinned(kernel) for name, kernel in sources.items()}

    def _fused(self, op: Op) -> Kernel:
        """The kernel of a fused op."""
        gpu = is_gpu(op.location)
        if not (gpu if self.compiled is None else self.compiled):
            return lookup(op).bind_overwrite(op)
        if op.name not in self._compiled:
            self._compiled[op.name] = compiled(op)
        kernel = self._compiled[op.name]
        return captured(op, kernel) if gpu else as_kernel(kernel)

    def _sum(
        self, graph: Graph, data: DataSet, values: Mapping[str, Tensor], start: int, times: int
    ) -> dict[str, float]:
        states = {}
        for name, state in graph.states.items():
            if name in values and name != ITERATION:
                keeps = state.next == name
                states[name] = values[name] if keeps else values[name].clone()
        states = initial_states(graph, self.seed, states)
        states = {name: _at_home(graph, name, value) for name, value in states.items()}
        executor = Executor(
            compile_program(lower(graph), self._reading(read_rows(graph, data, start))),
            states=states,
            settings=Settings(
                credit=self.credit,
                threads=len({core for own in self._cores.values() for core in own}) or self.threads,
                tf32=bool(self._tf32) if _on_gpus(graph) else None,
            ),
        )
        totals = dict.fromkeys(graph.outputs, 0.0)
        try:
            for iteration in range(times):
                executor.extend(min(times, iteration + self.credit))
                for name, value in executor.wait(iteration).items():
                    totals[name] += float(value)
        finally:
            executor.close()
        return totals


def _on_gpus(graph: Graph) -> bool:
    return any(is_gpu(op.location) for op in graph.ops.values())


def _at_home(graph: Graph, name: str, value: Tensor) -> Tensor:
    """The value of a state on the device and in the layout of its blob."""
    blob = graph.blobs[name]
    return laid_out(value.to(device_of(blob.location)), blob.layout)


def initial_states(
    graph: Graph, seed: int, given: Mapping[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """The first values of all states: a function of the seed and their names.

    A state whose value is `given` has that one, and nothing is drawn for it.
    """
    values = {}
    for name, state in graph.states.items():
        blob = graph.blobs[name]
        assert blob.shape is not None
        if given and name in given:
            values[name] = given[name]
        elif name == SEED:
            values[name] = torch.tensor(seed, dtype=dtype_of(blob.dtype))
        else:
            values[name] = fill(state.filler, blob.shape, blob.dtype, seed=seed, name=name)
    return values


class _Steps(Iterator[Result]):
    """The results of some iterations, which threads may share."""

    def __init__(self, run: Run, count: int) -> None:
        self._run = run
        self._left = count
        self._turn = threading.Lock()

    def __next__(self) -> Result:
        self._run._refuse_fork()
        with self._turn:
            if self._left == 0:
                raise StopIteration
            try:
                result = self._run._step(self._left)
            except StopIteration as error:  # a failure that a loop would take for the end
                raise RuntimeError("an iteration raised StopIteration") from error
            self._left -= 1
            return result


@checked
def compute(
    graph: Graph,
    feeds: Values | None = None,
    *,
    states: Values | None = None,
    seed: int = 0,
) -> dict[str, Tensor]:
    """Run one iteration of a graph whose inputs are fed, and return its outputs.

    Values may also be numpy arrays, lists and numbers.

    >>> from purine.kinds import Net, relu
    >>> net = Net()
    >>> y = relu(net.input("x", (2,)), name="y")
    >>> compute(net.graph(), {"x": torch.tensor([-1.0, 2.0])})["y"].tolist()
    [0.0, 2.0]
    """
    graph = check(graph)
    at_least("seed", seed, 0, _MOST_SEED)
    feeds = feeds or {}
    for name in graph.inputs:
        if name not in feeds:
            raise RunError(
                f"input blob {name!r} is not fed",
                blob=name,
                expected=f"a value for each of {', '.join(graph.inputs)}",
                found=", ".join(feeds) or "none",
                remedy=f"add {name!r} to feeds",
            )
    _refuse_data(graph)
    given = {**feeds, **(states or {})}
    for name in given:
        if name not in graph.inputs and name not in graph.states:
            raise RunError(
                f"there is no input or state {name!r}",
                blob=name,
                expected=", ".join((*graph.inputs, *graph.states)) or "none",
                found=repr(name),
                remedy="mend the name, or leave it out of feeds and states",
            )
        given[name] = _as_tensor(graph, name, given[name])
        _check_value(graph, name, given[name])
    feeds = {name: _at_home(graph, name, given[name]) for name in graph.inputs}
    values = {name: given[name].clone() for name in states or {}}
    first = initial_states(graph, seed, values)
    first = {name: _at_home(graph, name, first[name]) for name in graph.states}
    tf32 = False if _on_gpus(graph) else None
    settings = Settings(credit=1, tf32=tf32)
    executor = Executor(compile_program(lower(graph)), states=first, feeds=feeds, settings=settings)
    try:
        executor.extend(1)
        return executor.wait(0)
    finally:
        executor.close()


def _refuse_data(graph: Graph) -> None:
    """A graph that reads data cannot be fed."""
    for op in data_ops(graph):
        raise ConfigError(
            f"op {op.name!r} reads data, and a graph to compute is fed",
            where=op.where,
            op=op.name,
            expected="a graph whose inputs are fed, made with Net.input or pu.inference",
            found="a Data op",
            remedy="run it with pu.Run(graph, data=...), or cut the Data op off: pu.inference(net)",
        )


def _as_tensor(graph: Graph, name: str, value: object) -> Tensor:
    """A value from outside as a tensor; what has no dtype of its own gets that of its blob."""
    if isinstance(value, Tensor):
        return value
    try:
        if isinstance(value, np.ndarray | np.generic):
            return torch.from_numpy(np.array(value))
        blob = graph.blobs.get(name)
        return torch.tensor(value, dtype=None if blob is None else dtype_of(blob.dtype))
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise RunError(
            f"the value for {name!r} is no tensor",
            blob=name,
            expected="a tensor, a numpy array, a number or a list of numbers",
            found=f"{shown(value)} ({in_a_line(error)})",
            remedy="convert it to a tensor",
        ) from error


def _check_value(graph: Graph, name: str, value: Tensor) -> None:
    """Whether a value from outside fits its blob."""
    blob = graph.blobs[name]
    if (tuple(value.shape), dtype_name(value.dtype)) != (blob.shape, blob.dtype):
        raise RunError(
            f"blob {name!r} cannot take this value",
            where=blob.where,
            blob=name,
            location=str(blob.location),
            expected=f"{blob.dtype} {list(blob.shape or ())}",
            found=f"{dtype_name(value.dtype)} {list(value.shape)}",
            remedy="convert the value or change the blob",
        )
