"""Kernels for `Data` ops: a data set bound to the blobs that want its batches."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from torch import Tensor

from purine.data import DataSet, Reader, Source
from purine.errors import DataError
from purine.graph import NOTHING, Graph, Op
from purine.ops.registry import Kernel
from purine.runtime.layout import laid_out
from purine.runtime.streams import is_gpu

__all__ = ["batch_of", "data_ops", "pinned", "read_rows", "read_stream"]


def data_ops(graph: Graph) -> list[Op]:
    """The ops that read from a data set."""
    return [op for op in graph.ops.values() if op.kind == "Data"]


def read_stream(graph: Graph, data: DataSet | None) -> Mapping[str, Kernel]:
    """For each `Data` op a kernel that reads the batch of an iteration from the endless stream."""
    kernels: dict[str, Kernel] = {}
    for op in data_ops(graph):
        source = _source(op, data)
        _check_fields(graph, op, source)
        kernels[op.name] = _stream_kernel(graph, op, source)
    return kernels


def read_rows(graph: Graph, data: DataSet | None, start: int) -> Mapping[str, Kernel]:
    """For each `Data` op a kernel that reads its source from row `start` on, in order and once."""
    kernels: dict[str, Kernel] = {}
    for op in data_ops(graph):
        source = _source(op, data)
        _check_fields(graph, op, source)
        kernels[op.name] = _rows_kernel(graph, op, source, start)
    return kernels


def pinned(kernel: Kernel) -> Kernel:
    """A kernel whose batches are in memory that GPUs can fetch them from by themselves."""

    def fetched(*tensors: Tensor) -> tuple[Tensor, ...] | Tensor:
        found = kernel(*tensors)
        if isinstance(found, Tensor):
            return found.pin_memory()
        return tuple(value.pin_memory() for value in found)

    return fetched


def _stream_kernel(graph: Graph, op: Op, source: Source) -> Kernel:
    settings = {key: op.attributes.get(key, default) for key, default in _STREAM.items()}
    readers: dict[int, Reader] = {}
    layouts = _layouts(graph, op)

    def kernel(seed: Tensor, iteration: Tensor) -> tuple[Tensor, ...] | Tensor:
        key = int(seed)
        if key not in readers:
            readers[key] = Reader(source, batch=batch_of(graph, op), seed=key, **settings)  # type: ignore[arg-type]
        return _laid_out(readers[key].read(int(iteration)), layouts)

    return kernel


_STREAM: Mapping[str, object] = {"shuffle": True, "offset": 0, "whole": None}


def _rows_kernel(graph: Graph, op: Op, source: Source, start: int) -> Kernel:
    batch, layouts = batch_of(graph, op), _layouts(graph, op)

    def kernel(seed: Tensor, iteration: Tensor) -> tuple[Tensor, ...] | Tensor:
        first = start + int(iteration) * batch
        return _laid_out(source.batch(np.arange(first, first + batch)), layouts)

    return kernel


def _layouts(graph: Graph, op: Op) -> tuple[str, ...]:
    """How the batches that an op reads lie in memory.

    Samples that only GPUs read go there as they are stored, and are laid out by what reads them.
    """
    return tuple(
        "" if name == NOTHING or _for_gpus(graph, name) else graph.blobs[name].layout
        for name in op.outputs
    )


def _for_gpus(graph: Graph, name: str) -> bool:
    readers = graph.consumers[name]
    return bool(readers) and all(
        op.kind == "Copy" and is_gpu(graph.blobs[op.outputs[0]].location) for op in readers
    )


def _laid_out(values: tuple[Tensor, ...], layouts: tuple[str, ...]) -> tuple[Tensor, ...] | Tensor:
    made = tuple(laid_out(*pair) for pair in zip(values, layouts, strict=True))
    return made if len(made) > 1 else made[0]


def batch_of(graph: Graph, op: Op) -> int:
    """How many samples a `Data` op reads in an iteration."""
    blob = graph.blobs[next(name for name in op.outputs if name)]
    assert blob.shape
    return blob.shape[0]


def _source(op: Op, data: DataSet | None) -> Source:
    wanted = op.attributes.get("source", "train")
    if data is None:
        raise DataError(
            f"op {op.name!r} reads data, and the run has none",
            where=op.where,
            op=op.name,
            expected="a data set",
            found="none",
            remedy="pass data=, for example data=purine.data.fashion_mini()",
        )
    source = {"train": data.train, "test": data.test}.get(str(wanted))
    if source is None:
        raise DataError(
            f"op {op.name!r} reads source {wanted!r}, which data set {data.name!r} does not have",
            where=op.where,
            op=op.name,
            expected="train" if data.test is None else "train or test",
            found=repr(wanted),
            remedy="use a data set with a test part" if wanted == "test" else "mend `source`",
        )
    return source


def _check_fields(graph: Graph, op: Op, source: Source) -> None:
    if len(op.outputs) != len(source.fields):
        raise DataError(
            f"op {op.name!r} has {len(op.outputs)} outputs, the data {len(source.fields)} fields",
            where=op.where,
            op=op.name,
            expected=", ".join(str(field) for field in source.fields),
            found=", ".join(op.outputs),
            remedy="name one output for each field; ~ for one that is not needed",
        )
    for name, field in zip(op.outputs, source.fields, strict=True):
        if not name:
            continue
        blob = graph.blobs[name]
        assert blob.shape is not None
        if (blob.shape[1:], blob.dtype) != (field.shape, field.dtype):
            raise DataError(
                f"blob {name!r} does not fit field {field.name!r} of the data",
                where=blob.where or op.where,
                op=op.name,
                blob=name,
                location=str(blob.location),
                expected=f"{field.dtype}, {list(field.shape)} a sample",
                found=f"{blob.dtype}, {list(blob.shape[1:])} a sample",
                remedy="run purine.data.prepare on the net, or build it for these samples",
            )
