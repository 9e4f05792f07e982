"""Fitting a net to a data set: the ops between the stored samples and what the net wants to see.

Crop, mirror, mean and scale are ops of the graph on the `io` lane, so they are checked, traced and
overlapped with compute like all others. A mean image is a state, `MEAN_IMAGE`, whose value is given
to the run. Until then it is NaN, and so is the loss.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

from torch import Tensor

from purine.analysis.infer import infer_op, spec_of
from purine.arguments import at_least, checked, finite
from purine.data.source import Field, Source
from purine.errors import DataError
from purine.graph import NOTHING, Attribute, Builder, Filler, Graph, Op

__all__ = ["MEAN_IMAGE", "prepare"]

MEAN_IMAGE = "prepare/mean"
"""The state that holds a mean image, for `Run.set_states`."""


_Step: TypeAlias = tuple[str, str, tuple[str, ...], dict[str, Attribute]]
"""A label, a kind, its inputs behind the first, its attributes."""

_CLOCK = ("seed", "iteration")


@checked
def prepare(
    net: Graph,
    source: Source,
    *,
    mean: float | Sequence[float] | Tensor = 0.0,
    scale: float | None = None,
    crop: int | None = None,
    pad: int = 0,
    mirror: bool = False,
) -> Graph:
    """The net with ops that turn samples of `source` into what its `Data` ops are declared to give.

    `scale` is by default 1/255 for bytes and 1 for anything else. `pad` zeros are put around an
    image before a `crop` is taken from it, at random in training and from the middle in tests;
    samples of the test source are not mirrored either.
    `mean` is a number, one for each channel, or an image of the size of the stored ones. That is
    subtracted before all else, and its value has to be given to the run:
    `run.set_states({MEAN_IMAGE: mean})`.
    """
    at_least("pad", pad, 0)
    if crop is not None:
        at_least("crop", crop, 1)
    for what, number in (("scale", scale), ("mean", mean)):
        for value in number if isinstance(number, tuple | list) else (number,):
            if isinstance(value, float):
                finite(what, value)
    if isinstance(mean, Tensor):
        _check_image(mean, source)
    builder = Builder(net)
    for op in net.ops.values():
        if op.kind == "Data":
            _prepare_op(builder, op, source, mean, scale, crop, pad, mirror)
    return builder.graph()


def _prepare_op(
    builder: Builder,
    op: Op,
    source: Source,
    mean: float | Sequence[float] | Tensor,
    scale: float | None,
    crop: int | None,
    pad: int,
    mirror: bool,
) -> None:
    if len(op.outputs) != len(source.fields):
        raise _misfit(builder, op, source)
    tested = op.attributes.get("source") == "test"
    outputs = list(op.outputs)
    centred = isinstance(mean, Tensor) or mean != 0.0
    changed = centred or scale is not None or crop or mirror
    for index, (name, field) in enumerate(zip(op.outputs, source.fields, strict=True)):
        if name == NOTHING:
            continue
        blob, image = builder.blobs[name], len(field.shape) == 3
        if field.fits(blob.sizes, blob.dtype) and not (image and changed):
            continue
        if not image:
            raise _misfit(builder, op, source)
        _check_settings(field, mean, crop, pad)
        raw, shape = builder.fresh(f"{name}/raw"), (blob.sizes[0], *field.shape)
        outputs[index] = builder.blob(raw, shape, field.dtype, blob.location, layout=blob.layout)
        chain: list[_Step] = []
        if crop and tested:
            chain.append(("crop", "CenterCrop", (), {"size": crop, "pad": pad}))
        elif crop:
            stream = f"{name}/crop"
            chain.append(("crop", "Crop", _CLOCK, {"size": crop, "pad": pad, "stream": stream}))
        if mirror and not tested:
            chain.append(("mirror", "Mirror", _CLOCK, {"stream": f"{name}/mirror"}))
        factor = scale if scale is not None else (1 / 255 if field.dtype == "uint8" else 1.0)
        settings: dict[str, Attribute] = {"scale": factor, "dtype": blob.dtype}
        if isinstance(mean, Tensor):
            if MEAN_IMAGE not in builder.states:
                builder.blob(MEAN_IMAGE, tuple(mean.shape), blob.dtype, op.location)
                builder.state(MEAN_IMAGE, filler=Filler("constant", {"value": math.nan}))
            chain.insert(0, ("normalize", "Normalize", (MEAN_IMAGE,), settings))
        else:
            settings["mean"] = mean if isinstance(mean, int | float) else tuple(mean)
            chain.append(("normalize", "Normalize", (), settings))
        _emit(builder, op, raw, name, chain, field)
    builder.ops[op.name] = replace(op, outputs=tuple(outputs))


def _check_settings(
    field: Field, mean: float | Sequence[float] | Tensor, crop: int | None, pad: int
) -> None:
    """Refuse a crop or means that images of this form cannot have."""
    channels, *sides = field.shape
    if crop and crop > min(sides) + 2 * pad:
        size = f"{sides[0]} x {sides[1]} with pad {pad}"
        what, most = f"a crop of {crop} cannot be cut from images of {size}", min(sides) + 2 * pad
        expected, remedy = f"a crop of at most {most}", "lower crop (--crop), or raise pad (--pad)"
        raise DataError(what, expected, str(crop), remedy)
    if isinstance(mean, Sequence) and len(mean) != channels:
        what = f"{len(mean)} means are given for images of {list(field.shape)}"
        expected = "one number" + (f", or {channels}: one a channel" if channels > 1 else "")
        actual = ", ".join(f"{value:g}" for value in mean)
        raise DataError(what, expected, actual, "change mean (--mean)")


def _check_image(mean: Tensor, source: Source) -> None:
    images = {field.shape for field in source.fields if len(field.shape) == 3}
    if images != {tuple(mean.shape)} or not mean.is_floating_point():
        shapes = ", ".join(str(list(shape)) for shape in images) or "of which there are none"
        expected = f"floating-point numbers of the shape of the stored images, {shapes}"
        what, form = "the mean image does not fit the samples", f"{mean.dtype} {list(mean.shape)}"
        remedy = "make the mean of these samples, or give a number for each channel"
        raise DataError(what, expected, form, remedy)


def _emit(
    builder: Builder, op: Op, raw: str, target: str, chain: Sequence[_Step], field: Field
) -> None:
    """Add the ops from blob `raw` to blob `target`, and check that they arrive at its shape."""
    current = raw
    for index, (label, kind, more, attributes) in enumerate(chain):
        inputs = (current, *more)
        name = f"{target}/{label}"
        draft = Op(name, kind, inputs, (), attributes, op.location, "io", op.where)
        (spec,) = infer_op(draft, [spec_of(builder.blobs[item]) for item in inputs])
        assert spec is not None
        last = index == len(chain) - 1
        wanted = list(builder.blobs[target].sizes)
        if last and list(spec.shape) != wanted:
            what = f"samples of {list(field.shape)} do not become {wanted[1:]}"
            found = f"{list(spec.shape)} after {', '.join(item[0] for item in chain)}"
            remedy = "build the net for these samples, or give a crop of its size"
            raise DataError(what, f"blob {target!r} of {wanted}", found, remedy, op=op, blob=target)
        output = target if last else builder.blob(name, spec.shape, spec.dtype, op.location)
        builder.add(replace(draft, outputs=(output,)))
        current = output


def _misfit(builder: Builder, op: Op, source: Source) -> DataError:
    what, remedy = f"op {op.name!r} does not fit the data", "use a net for this kind of data"
    blobs = ", ".join(str(builder.blobs[name]) if name else "~" for name in op.outputs)
    return DataError(what, ", ".join(map(str, source.fields)), blobs, remedy, op=op)
