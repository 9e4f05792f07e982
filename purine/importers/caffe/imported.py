"""A Caffe definition as graphs: the nets of both phases, the solver and the transforms.

Nothing but the text is read: databases, mean files and weights stay where they are, and `notes`
says what was left out.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from purine.errors import ConfigError
from purine.graph import Graph
from purine.importers.caffe.definition import read_definition
from purine.importers.caffe.layer import Scope
from purine.importers.caffe.net import NetState, build, layers_of
from purine.importers.caffe.schema import Node
from purine.importers.caffe.solver import CaffeSolver
from purine.optimize import evaluation

__all__ = ["Imported", "Transform", "from_caffe"]

_SOURCES = ("Data", "DummyData", "HDF5Data", "ImageData", "Input", "MemoryData")


@dataclass(frozen=True, slots=True)
class Transform:
    """What Caffe does with stored samples; `purine.data.prepare` takes the same settings.

    >>> Transform(scale=0.5).settings()
    {'scale': 0.5, 'mean': 0.0, 'crop': None, 'mirror': False}
    """

    scale: float = 1.0
    mean: float | tuple[float, ...] = 0.0
    crop: int | None = None
    mirror: bool = False

    def settings(self) -> dict[str, float | tuple[float, ...] | int | bool | None]:
        """Keyword arguments for `prepare`."""
        return {
            "scale": self.scale,
            "mean": self.mean,
            "crop": self.crop,
            "mirror": self.mirror,
        }


@dataclass(frozen=True, slots=True)
class Imported:
    """A Caffe definition as graphs.

    `net` is the net of the training phase, to be given to `backward`; `test` that of the test phase
    in its test-time form, with the same parameters, or None where that phase has no source.
    """

    name: str
    net: Graph
    test: Graph | None
    solver: CaffeSolver | None = None
    transform: Transform = Transform()
    notes: tuple[str, ...] = ()


def from_caffe(
    path: str | os.PathLike[str],
    *,
    solver: str | os.PathLike[str] | None = None,
    test: str | os.PathLike[str] | None = None,
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
    """
    if batch is not None and batch < 1:
        raise ConfigError(
            f"batch is {batch}", expected="1 or more", found=str(batch), remedy="change batch"
        )
    sizes = {name: _size(f"the shape of {name!r}", shape) for name, shape in (shapes or {}).items()}
    stored = None if image is None else _size("image", image)
    found = read_definition(path, solver=solver, test=test)
    built = {}
    for node, state in (found.train, found.test):
        if state.phase == "TRAIN" or _has_source(node, state):
            built[state.phase] = build(
                node, state, batch=batch, image=stored, crop=crop, shapes=sizes, dtype=dtype
            )
    net, scope = built["TRAIN"]
    tested = evaluation(built["TEST"][0]) if "TEST" in built else None
    transform, left_out = _transform(scope)
    notes = (*dict.fromkeys([*scope.notes, *left_out]),)
    name = found.train[0].get("name", "")
    return Imported(name, net, tested, found.solver, transform, notes)


def _transform(scope: Scope) -> tuple[Transform, list[str]]:
    """The transform of the first source that has one, and what cannot be part of it."""
    notes = []
    values: dict[str, float | tuple[float, ...] | int | bool] = {}
    for node in scope.transforms:
        if "mean_file" in node:
            notes.append(
                f"{node.place('mean_file')}: the mean in {node.get('mean_file')!r} is not read; "
                "give its value as mean to prepare"
            )
        for name in ("scale", "crop_size", "mirror"):
            if node.get(name):
                values.setdefault(name.removesuffix("_size"), node.get(name))
        means = node.all("mean_value") if node.type == "TransformationParameter" else []
        if means:
            values.setdefault("mean", means[0] if len(means) == 1 else tuple(means))
    return Transform(**values), notes  # type: ignore[arg-type]


def _has_source(net: Node, state: NetState) -> bool:
    return "input" in net or any(n.get("type") in _SOURCES for n in layers_of(net, state))


def _size(what: str, shape: Sequence[int]) -> tuple[int, ...]:
    if any(not isinstance(extent, int) or extent < 1 for extent in shape):
        raise ConfigError(
            f"{what} is {list(shape)}",
            expected="whole numbers of 1 or more",
            found=str(list(shape)),
            remedy="write for example (3, 32, 32)",
        )
    return tuple(shape)
