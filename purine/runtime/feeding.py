"""Kernels for `Data` ops: a data set bound to the blobs that want its batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from purine.data import DataSet, Field, Reader, Source
from purine.errors import DataError
from purine.graph import NOTHING, Blob, Graph, Op
from purine.machine.cores import on_gpus
from purine.registry.aten import dtype_of
from purine.registry.kind import Kernel
from purine.runtime.streams import is_gpu
from purine.runtime.values import laid_out

__all__ = ["batch_of", "data_ops", "read_rows", "read_stream"]


_Form: TypeAlias = tuple[torch.dtype, str] | None
"""A dtype and a layout; None for a field that nobody reads."""
_Read: TypeAlias = Callable[[int, int], tuple[Tensor, ...]]
"""Reads the batch for a seed and an iteration."""


def data_ops(graph: Graph) -> list[Op]:
    """The ops that read from a data set."""
    return [op for op in graph.ops.values() if op.kind == "Data"]


def read_stream(graph: Graph, data: DataSet | None) -> Mapping[str, Kernel]:
    """For each `Data` op a kernel that reads the batch of an iteration, epoch after epoch."""

    def reading(op: Op, source: Source) -> _Read:
        shuffle = op.attributes.get("shuffle", not source.sequential)
        assert isinstance(shuffle, bool)
        whole = None if op.attributes.get("whole") is None else op.whole("whole")
        batch, offset = batch_of(graph, op), op.whole("offset")

        @cache
        def reader(seed: int) -> Reader:
            return Reader(
                source, batch=batch, seed=seed, shuffle=shuffle, offset=offset, whole=whole
            )

        return lambda seed, iteration: reader(seed).read(iteration)

    return _kernels(graph, data, reading)


def read_rows(graph: Graph, data: DataSet | None, start: int) -> Mapping[str, Kernel]:
    """For each `Data` op a kernel that reads its source from row `start` on, in order and once."""

    def reading(op: Op, source: Source) -> _Read:
        batch = batch_of(graph, op)
        return lambda _, k: source.batch(start + k * batch + np.arange(batch))

    return _kernels(graph, data, reading)


def _kernels(
    graph: Graph, data: DataSet | None, reading: Callable[[Op, Source], _Read]
) -> Mapping[str, Kernel]:
    """The kernels of all `Data` ops, once their sources are checked."""
    kernels: dict[str, Kernel] = {}
    for op in data_ops(graph):
        source = _source(op, data)
        _check_fields(graph, op, source)
        kernels[op.name] = _kernel(graph, op, reading(op, source))
    return kernels


def _kernel(graph: Graph, op: Op, read: _Read) -> Kernel:
    forms = _forms(graph, op)
    pinned = on_gpus(graph) and torch.cuda.is_available()

    def kernel(seed: Tensor, iteration: Tensor) -> tuple[Tensor, ...] | Tensor:
        batches = [
            value if form is None else laid_out(value.to(form[0]), form[1])
            for value, form in zip(read(int(seed), int(iteration)), forms, strict=True)
        ]
        if pinned:
            batches = [batch.pin_memory() for batch in batches]
        return tuple(batches) if len(batches) > 1 else batches[0]

    return kernel


def _forms(graph: Graph, op: Op) -> tuple[_Form, ...]:
    """The dtype and the layout of each batch that an op returns.

    Batches that only GPUs read keep the layout in which they are stored. The GPU converts them.
    """

    def form(name: str) -> _Form:
        blob, readers = graph.blobs[name], graph.consumers[name]
        for_gpus = readers and all(
            op.kind == "Copy" and is_gpu(graph.blobs[op.outputs[0]].location) for op in readers
        )
        return dtype_of(blob.dtype), "" if for_gpus else blob.layout

    return tuple(None if name == NOTHING else form(name) for name in op.outputs)


def batch_of(graph: Graph, op: Op) -> int:
    """The number of samples that a `Data` op reads in an iteration."""
    return _shape(graph.blobs[next(name for name in op.outputs if name)])[0]


def _shape(blob: Blob) -> tuple[int, ...]:
    assert blob.shape is not None
    return blob.shape


def _source(op: Op, data: DataSet | None) -> Source:
    wanted = op.attributes.get("source", "train")
    if data is None:
        what = f"op {op.name!r} reads data, and the run has none"
        remedy = "pass data=, for example data=purine.data.fashion_mini()"
        raise DataError(what, op=op, expected="a data set", found="none", remedy=remedy)
    source = {"train": data.train, "test": data.test}.get(str(wanted))
    if source is None:
        raise DataError(
            f"op {op.name!r} reads source {wanted!r}, which data set {data.name!r} does not have",
            op=op,
            expected="train" if data.test is None else "train or test",
            found=repr(wanted),
            remedy="use a data set with a test part" if wanted == "test" else "correct `source`",
        )
    return source


def _check_fields(graph: Graph, op: Op, source: Source) -> None:
    if len(op.outputs) != len(source.fields):
        raise DataError(
            f"the net reads {len(op.outputs)} inputs, and the data has {len(source.fields)} fields",
            op=op,
            expected=f"one field for each of {', '.join(name or '~' for name in op.outputs)}",
            found=", ".join(str(field) for field in source.fields),
            remedy="give data for each input, in this order; in a graph, let the Data op have an "
            "output for each field, ~ for one that is not needed",
        )
    for name, field in zip(op.outputs, source.fields, strict=True):
        blob = graph.blobs[name] if name else None
        if blob is not None and not field.fits(_shape(blob), blob.dtype):
            raise DataError(
                f"input {name!r} of the net does not fit {field.name!r} of the data",
                where=blob.where or op.where,
                op=op.name,
                blob=blob,
                expected=f"{blob.dtype}, {list(_shape(blob)[1:])} a sample",
                found=f"{field.dtype}, {list(field.shape)} a sample",
                remedy=_remedy(blob, field),
            )


def _remedy(blob: Blob, field: Field) -> str:
    wanted = _shape(blob)[1:]
    if wanted != field.shape and math.prod(wanted) == math.prod(field.shape):
        return f"reshape the data to {['N', *wanted]}".replace("'", "")
    if field.dtype == "uint8" and len(field.shape) == 3:
        return "let the net turn bytes into floats: pu.data.prepare(net, data.train)"
    if wanted == field.shape:
        return f"convert the data to {blob.dtype}, or build the net for {field.dtype}"
    return "build the net for these samples, or give images a crop with pu.data.prepare"
