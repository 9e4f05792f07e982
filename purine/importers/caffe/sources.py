"""Layers without bottoms: batches from a source, inputs, and constants.

The size of stored images is an argument of the import, or that of the database if it is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from purine.data.lmdb import is_leveldb
from purine.errors import ConfigError
from purine.importers.caffe.files import NamedSource, located, within
from purine.importers.caffe.layer import Layer, filler_of, usable
from purine.importers.caffe.schema import Node
from purine.kinds.net import Var
from purine.registry.clock import ITERATION, SEED, add_clock


def data(layer: Layer) -> None:
    settings = layer.settings("data_param")
    transform = layer.settings("transform_param")
    color = False if transform.get("force_gray", False) else None
    if settings.get("force_encoded_color", False) or transform.get("force_color", False):
        color = True
    _images(layer, settings, None, replace(_named(layer, settings), color=color))


def image_data(layer: Layer) -> None:
    settings = layer.settings("image_data_param")
    height, width = settings.get("new_height", 0), settings.get("new_width", 0)
    channels = 3 if settings.get("is_color", True) else 1
    size = (height, width) if height and width else None
    folder = settings.get("root_folder", "")
    named = replace(_named(layer, settings), size=size, color=channels == 3, folder=folder)
    _images(layer, settings, (channels, *size) if size else None, named)


def memory_data(layer: Layer) -> None:
    settings = layer.settings("memory_data_param")
    sizes = [settings.positive(name) for name in ("channels", "height", "width")]
    _images(layer, settings, tuple(sizes), _named(layer, settings))


def hdf5_data(layer: Layer) -> None:
    settings = layer.settings("hdf5_data_param")
    options = layer.scope.options
    batch = options.batch or settings.positive("batch_size")
    named = _named(layer, settings)
    given = dict(options.shapes)
    if options.image is not None:
        given.setdefault(layer.tops[0], options.image)
    if any(top not in given for top in layer.tops):
        given = {item.name: item.shape for item in named.fields(options.roots)} | given
    layer.scope.sources.append(named)
    shapes: list[tuple[int, ...]] = []
    for top in layer.tops:
        known = given.get(top, () if top in layer.scope.whole else None)
        if known is None:
            raise _no_size(layer, top, named)
        shapes.append((batch, *known))
    _source(layer, shapes, named)


def input_layer(layer: Layer) -> None:
    settings = layer.settings("input_param")
    shapes = settings.all("shape")
    _check_one_each(layer, settings, "shape", len(shapes))
    for index, top in enumerate(layer.tops):
        shape = _dims(shapes[index] if len(shapes) > 1 else shapes[0])
        layer.put(top, _blob(layer, top, layer.scope.shape(top, shape)), report=False)


def dummy_data(layer: Layer) -> None:
    settings = layer.settings("dummy_data_param")
    shapes = [_dims(node) for node in settings.all("shape")]
    if not shapes:
        columns = [settings.all(name) for name in ("num", "channels", "height", "width")]
        if not all(columns) or len({len(column) for column in columns}) != 1:
            what = f"layer {layer.name!r} has no shape"
            raise settings.error(what, "shape", "shape { dim: ... }", "none")
        shapes = [tuple(row) for row in zip(*columns, strict=True)]
    fillers = settings.all("data_filler")
    _check_one_each(layer, settings, "shape", len(shapes))
    _check_one_each(layer, settings, "data_filler", len(fillers) or 1)
    for index, top in enumerate(layer.tops):
        shape = layer.scope.shape(top, shapes[index if len(shapes) > 1 else 0])
        filler = filler_of(fillers[index if len(fillers) > 1 else 0] if fillers else None)
        var = _blob(layer, top, shape)
        layer.scope.net.builder.state(var.name, filler=filler, where=layer.node.where)
        layer.put(top, var, report=False)
        if filler.kind != "constant":
            note = f"{layer.node.where}: dummy data {top!r} is drawn once, not for each batch"
            layer.scope.notes.append(note)


def _named(layer: Layer, settings: Node) -> NamedSource:
    """What a layer says of its source; blobs of it are of these dtypes."""
    path = settings.get("source", "") if settings.type != "MemoryDataParameter" else ""
    images = settings.type != "HDF5DataParameter"
    dtypes = {
        top: "int64" if images and index == 1 else layer.scope.dtype(top)
        for index, top in enumerate(layer.tops)
    }
    return NamedSource(layer.name, layer.type, path, layer.node.where, dtypes)


def _images(layer: Layer, settings: Node, size: tuple[int, ...] | None, named: NamedSource) -> None:
    """A source of images, and of labels if there is a second top."""
    scope, options = layer.scope, layer.scope.options
    scope.sources.append(named)
    batch = options.batch or settings.positive("batch_size")
    image = options.shapes.get(layer.tops[0]) or options.image or size
    if image is None:
        image = next((field.shape for field in named.fields(options.roots)), None)
    transform = layer.settings("transform_param")
    crop = options.crop or transform.get("crop_size", 0)
    if not crop and settings.type != "MemoryDataParameter":
        crop = settings.get("crop_size", 0)
    if image is None or (crop and len(image) != 3):
        raise _no_size(layer, layer.tops[0], named)
    if crop:
        image = (image[0], crop, crop)
    scope.transforms.append(transform)
    if settings.type != "MemoryDataParameter":
        scope.transforms.append(settings)
    shapes = [(batch, *image), (batch, *options.shapes.get(layer.tops[-1], ()))]
    _source(layer, shapes[: len(layer.tops)], named)


def _source(layer: Layer, shapes: Sequence[tuple[int, ...]], named: NamedSource) -> None:
    scope, builder = layer.scope, layer.scope.net.builder
    add_clock(builder)
    names = []
    for top, shape in zip(layer.tops, shapes, strict=True):
        names.append(builder.blob(usable(top), shape, named.dtypes[top], where=layer.node.where))
        layer.put(top, Var(scope.net, names[-1]), report=False)
    builder.op(layer.op_name(), "Data", [SEED, ITERATION], names, lane="io", where=layer.node.where)


def _blob(layer: Layer, top: str, shape: Sequence[int]) -> Var:
    """A blob for a top that no op writes."""
    builder, dtype = layer.scope.net.builder, layer.scope.dtype(top)
    return Var(layer.scope.net, builder.blob(usable(top), shape, dtype, where=layer.node.where))


def _check_one_each(layer: Layer, settings: Node, field: str, count: int) -> None:
    if count not in (1, len(layer.tops)):
        what = f"layer {layer.name!r} has {count} {field}s"
        raise settings.error(what, field, f"1, or {len(layer.tops)}: one for each top", str(count))


def _dims(node: Node) -> tuple[int, ...]:
    dims = tuple(node.all("dim"))
    if any(dim < 1 for dim in dims):
        raise node.error(f"a dimension is {min(dims)}", "dim", "1 or more", str(list(dims)))
    return dims


def _no_size(layer: Layer, top: str, named: NamedSource) -> ConfigError:
    roots = layer.scope.options.roots
    path = located(named.path, roots)
    reader = f"layer {layer.name!r} ({layer.type})"
    what = f"the size of {top!r} is not in the text: {reader} reads it from its source"
    expected = "the size of one image as (channels, height, width)"
    found = "none, and no source to look at"
    if named.path and path is None:
        what = f"the source {named.path!r} of {reader} is not there"
        expected, found = f"it {within(roots)}", "nothing at this path, and no size of its images"
    elif path is not None and is_leveldb(path):
        found = f"none, and {path} is a LevelDB, which cannot be read"
    remedy = f"in Python pass image=(3, 32, 32) or shapes={{{top!r}: (...)}}, or root= with the "
    remedy += "folder where the path of the source begins; on the command line --image 3,32,32, or "
    remedy += "--data for purine train"
    where, op = layer.node.where, layer.name
    return ConfigError(what, expected, found, remedy, where=where, op=op, blob=top)
