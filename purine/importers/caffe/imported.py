"""A Caffe definition as graphs: the nets of both phases, the solver, and what goes with them.

The text alone is enough. Weights are read where they are given, a mean image and the size of stored
images where the files that the text names are there; `notes` says what was left out.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from torch import Tensor

from purine.arguments import at_least, checked, wrong_value
from purine.data import DataSet
from purine.data.prepare import MEAN_IMAGE, prepare
from purine.data.stored import Stored
from purine.errors import ConfigError, DataError
from purine.graph import Graph
from purine.importers import HasStates
from purine.importers.caffe.definition import Definition, read_definition, read_solver
from purine.importers.caffe.files import NamedSource, located
from purine.importers.caffe.layer import Options, Scope
from purine.importers.caffe.net import build, layers_of
from purine.importers.caffe.solver import CaffeSolver
from purine.importers.caffe.weights import StoredLayer, read_mean, read_weights, write_weights
from purine.optimize import evaluation
from purine.placement.values import gather_values
from purine.registry.aten import dtype_of

__all__ = ["Imported", "Transform", "from_caffe", "from_caffe_solver"]

StrPath: TypeAlias = str | os.PathLike[str]

_SOURCES = ("Data", "DummyData", "HDF5Data", "ImageData", "Input", "MemoryData")


@dataclass(frozen=True, slots=True)
class Transform:
    """What Caffe does with stored samples; `purine.data.prepare` takes the same settings.

    A `mean_image` takes the place of `mean`; `missing_mean` says where a mean image is asked for
    that is not there, and its path.

    >>> Transform(scale=0.5).settings()
    {'scale': 0.5, 'mean': 0.0, 'crop': None, 'mirror': False}
    """

    scale: float = 1.0
    mean: float | tuple[float, ...] = 0.0
    crop: int | None = None
    mirror: bool = False
    mean_image: Tensor | None = field(default=None, compare=False)
    missing_mean: tuple[str, str] | None = None

    def settings(self) -> dict[str, Any]:
        """Keyword arguments for `prepare`."""
        mean = self.mean if self.mean_image is None else self.mean_image
        return {"scale": self.scale, "mean": mean, "crop": self.crop, "mirror": self.mirror}

    @property
    def left_out(self) -> str | None:
        """What to note of a mean image that is not there."""
        note = "{}: the mean in {!r} is not read, as there is no such file; "
        note += "give it as mean to prepare, or to a job as --mean-file or --mean"
        return None if self.missing_mean is None else note.format(*self.missing_mean)


@dataclass(frozen=True, slots=True)
class Imported:
    """A Caffe definition as graphs.

    `net` is the net of the training phase, to be given to `backward`; `test` that of the test phase
    in its test-time form, with the same parameters, or None where that phase has no source.
    `values` are what the weights give to states of `net`, for `Run.set_states`. `layers` tells
    which states belong to which layer, `train_sources` and `test_sources` who reads samples.
    """

    name: str
    net: Graph
    test: Graph | None
    solver: CaffeSolver | None = None
    transform: Transform = Transform()
    notes: tuple[str, ...] = ()
    values: Mapping[str, Tensor] = field(default_factory=dict, compare=False)
    layers: tuple[StoredLayer, ...] = ()
    train_sources: tuple[NamedSource, ...] = ()
    test_sources: tuple[NamedSource, ...] = ()
    roots: tuple[Path, ...] = (Path(),)

    @checked
    def data(self, root: StrPath | None = None) -> DataSet:
        """The data that the definition names, of both phases.

        Relative paths begin at `root`; without it, where those of the import did.
        """
        train, test = self._stored(root)
        return DataSet(self.name or "caffe", train.open(), None if test is None else test.open())

    @checked
    def data_text(self, root: StrPath | None = None) -> str:
        """The same data as a text for `purine.data.open_data`, with absolute paths."""
        train, test = self._stored(root)
        if test is not None and train.kind != test.kind:
            what = f"{self.name!r} trains and tests on data of two kinds"
            expected, kinds = f"{train.kind} in both phases", f"{train.kind} and {test.kind}"
            remedy, where = "name data in one form with --data", self.test_sources[0].where
            raise DataError(what, expected, kinds, remedy, where=where)
        parts = [str(part.absolute()) for part in (train, test) if part is not None]
        return f"{train.kind}:{','.join(parts)}"

    @checked
    def prepared(self, data: DataSet) -> Imported:
        """The same with nets that take the samples of `data` as they are stored.

        Test images are cropped in the middle and not mirrored. A mean image is among the values.
        """
        settings = self.transform.settings()
        net = prepare(self.net, data.train, **settings)
        test = self.test
        if test is not None and data.test is not None:
            test = evaluation(prepare(test, data.test, **settings))
        values = dict(self.values)
        if self.transform.mean_image is not None and MEAN_IMAGE in net.states:
            values[MEAN_IMAGE] = self.transform.mean_image
        return replace(self, net=net, test=test, values=values)

    @checked
    def to_caffe(self, run: HasStates, path: StrPath) -> None:
        """Write the parameters of a run as a caffemodel; the file appears whole or not at all."""
        write_weights(Path(path), self.name, self.layers, gather_values(run.graph, run.states()))

    def _stored(self, root: StrPath | None) -> tuple[Stored, Stored | None]:
        roots = self.roots if root is None else (Path(root),)
        train = self._only(self.train_sources, "TRAIN").stored(roots)
        if not self.test_sources:
            return train, None
        return train, self._only(self.test_sources, "TEST").stored(roots)

    def _only(self, sources: Sequence[NamedSource], phase: str) -> NamedSource:
        if len(sources) != 1:
            what = f"phase {phase} of {self.name!r} reads from {len(sources)} sources"
            where = sources[0].where if sources else None
            expected = "one layer of type Data, HDF5Data or ImageData"
            layers = ", ".join(f"{item.layer} ({item.type})" for item in sources) or "none"
            remedy = "make a data set of your own and give it to the run; a job takes --data"
            raise DataError(what, where=where, expected=expected, found=layers, remedy=remedy)
        return sources[0]


@checked
def from_caffe(
    path: StrPath,
    *,
    solver: StrPath | None = None,
    test: StrPath | None = None,
    weights: StrPath | Sequence[StrPath] = (),
    root: StrPath | None = None,
    batch: int | None = None,
    image: Sequence[int] | None = None,
    crop: int | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    dtype: str = "float32",
) -> Imported:
    """The net that a prototxt file defines, and the solver of another.

    `path` may also name a solver, whose net is then meant. `test` is the file of the test phase
    where that is a net of its own. `image` is the size of a stored image, (channels, height,
    width), which a Caffe net leaves to its database; `shapes` gives the size of one sample of other
    blobs that come from a source. `batch` and `crop` replace the sizes of batches and of crops in
    the text.

    `weights` are caffemodel files, of which later ones win. Relative paths in the text begin at
    `root`: by default the current folder, else that of the definition. If the source that a layer
    names is there, the size of its samples need not be given.
    """
    if batch is not None:
        at_least("batch", batch, 1)
    sizes = {name: _size(f"the shape of {name!r}", shape) for name, shape in (shapes or {}).items()}
    stored = None if image is None else _size("image", image)
    roots = (Path(), Path(path).parent) if root is None else (Path(root),)
    options = Options(batch, stored, crop, sizes, dtype, roots)
    files = [weights] if isinstance(weights, str | os.PathLike) else weights
    definition = read_definition(path, solver=solver, test=test)
    return _imported(definition, options, [Path(file) for file in files])


@checked
def from_caffe_solver(path: StrPath) -> CaffeSolver:
    """The solver that a prototxt file defines: a function from a net with gradients to a step.

    It is used like solvers of `purine.solvers`: `solver(pu.backward(net))`. The net that the file
    names is not read; `from_caffe` reads both.
    """
    return read_solver(path)


def _imported(definition: Definition, options: Options, weights: Sequence[Path]) -> Imported:
    """The graphs of both phases, with the values that the weight files give to their states."""
    net, scope = build(*definition.train, options)
    transform = _transform(scope)
    notes = [*scope.notes, *filter(None, [transform.left_out])]
    test: Graph | None = None
    test_sources: tuple[NamedSource, ...] = ()
    tested, state = definition.test
    if "input" in tested or any(n.get("type") in _SOURCES for n in layers_of(tested, state)):
        test, test_scope = build(tested, state, options)
        test, test_sources = evaluation(test), tuple(test_scope.sources)
        notes += _differences(transform, _transform(test_scope))
    values: dict[str, Tensor] = {}
    if weights:
        shapes = {name: net.blobs[name].shape or () for name in net.states}
        values, unset = read_weights(weights, scope.stored, shapes)
        values = {name: value.to(dtype_of(options.dtype)) for name, value in values.items()}
        notes += unset
    return Imported(
        *(definition.train[0].get("name", ""), net, test, definition.solver, transform),
        *(tuple(dict.fromkeys(notes)), values, tuple(scope.stored), tuple(scope.sources)),
        *(test_sources, options.roots),
    )


def _differences(train: Transform, test: Transform) -> list[str]:
    """What is done with test samples in another way, which one transform cannot say."""
    notes = [
        f"the test phase has {name} {getattr(test, name)}, the training phase "
        f"{getattr(train, name)}; the transform is that of training"
        for name in ("scale", "mean", "crop")
        if getattr(train, name) != getattr(test, name)
    ]
    first, second = train.mean_image, test.mean_image
    if first is not second and (first is None or second is None or not first.equal(second)):
        notes.append("the test phase has another mean image; the transform is that of training")
    return notes


def _transform(scope: Scope) -> Transform:
    """The transform of the first source that has one."""
    values: dict[str, Any] = {}
    for node in scope.transforms:
        means = node.all("mean_value") if node.type == "TransformationParameter" else []
        path = located(node.get("mean_file", ""), scope.options.roots)
        if means and "mean_file" in node:
            what, remedy = "mean_file and mean_value are given", "remove one of them"
            raise node.error(what, "mean_file", "one of the two", "both", remedy)
        if path is not None:
            values.setdefault("mean_image", read_mean(path).to(dtype_of(scope.net.dtype)))
        elif "mean_file" in node:
            values.setdefault("missing_mean", (node.place("mean_file"), node.get("mean_file")))
        for name in ("scale", "crop_size", "mirror"):
            if node.get(name):
                values.setdefault(name.removesuffix("_size"), node.get(name))
        if means:
            values.setdefault("mean", means[0] if len(means) == 1 else tuple(means))
    return Transform(**values)


def _size(what: str, shape: Sequence[int]) -> tuple[int, ...]:
    if any(not isinstance(extent, int) or extent < 1 for extent in shape):
        expected, remedy = "whole numbers of 1 or more", "write for example (3, 32, 32)"
        raise wrong_value(ConfigError, what, list(shape), expected, remedy=remedy)
    return tuple(shape)
