"""The translation of one layer: its bottoms and parameters, and the ops that it adds.

Caffe lets a layer overwrite its bottom, and has one namespace each for layers, blobs and
parameters. A graph does neither, so a `Scope` maps Caffe's blob names to ours, layer by layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from purine.errors import FormatError
from purine.graph import Attribute, Filler, Op
from purine.importers.caffe.files import NamedSource
from purine.importers.caffe.schema import Node
from purine.importers.caffe.weights import Slot, StoredLayer
from purine.kinds.net import Net, Var
from purine.registry.clock import ITERATION, SEED

__all__ = ["Layer", "Options", "Scope", "filler_of", "one_op", "usable"]

_RESERVED = (SEED, ITERATION, "lr")
_PREFIXES = ("grad/", "update/", "momentum/", "micro")
_MULTIPLIERS = ("lr_mult", "decay_mult")
_FILLERS: Mapping[str, tuple[str, ...]] = {
    "constant": ("value",),
    "uniform": ("min", "max"),
    "gaussian": ("mean", "std", "sparse"),
    "xavier": ("variance_norm",),
    "msra": ("variance_norm",),
    "bilinear": (),
    "positive_unitball": (),
}
"""The settings that each kind of filler reads."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the caller of an import says; see `from_caffe`. Relative paths begin at the `roots`."""

    batch: int | None
    image: tuple[int, ...] | None
    crop: int | None
    shapes: Mapping[str, tuple[int, ...]]
    dtype: str
    roots: tuple[Path, ...]


@dataclass(slots=True)
class Scope:
    """A net that is being translated for one phase.

    `blobs` maps Caffe's blob names to ours, `unread` holds those that no layer has read yet, `tops`
    all names that any layer of the phase writes, `whole` the blobs that hold labels or indices.
    `sources` and `stored` are the layers that read samples and that have parameters.
    """

    net: Net
    phase: str
    tops: frozenset[str]
    whole: frozenset[str]
    options: Options
    blobs: dict[str, Var] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)
    losses: list[str] = field(default_factory=list)
    owners: dict[str, tuple[Var, str]] = field(default_factory=dict)
    transforms: list[Node] = field(default_factory=list)
    sources: list[NamedSource] = field(default_factory=list)
    stored: list[StoredLayer] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def dtype(self, top: str) -> str:
        """The dtype of a blob that comes from outside."""
        return "int64" if top in self.whole else self.net.dtype

    def shape(self, top: str, given: Sequence[int]) -> tuple[int, ...]:
        """A declared shape, for the batch that was asked for."""
        batch, shapes = self.options.batch, self.options.shapes
        if top in shapes:
            given = (given[0] if given else 1, *shapes[top])
        return tuple(given) if batch is None or not given else (batch, *given[1:])

    def place(self, top: str, var: Var, *, report: bool = True) -> None:
        """Let a Caffe name stand for a blob from here on."""
        self.blobs[top] = var
        if report:
            self.unread[top] = var.name


class Layer:
    """One layer, seen by the function that translates its type."""

    def __init__(self, scope: Scope, node: Node) -> None:
        self.scope = scope
        self.node = node
        self.type: str = node.get("type", "")
        self.name = usable(node.get("name") or self.type.lower() or "layer")
        self.tops: list[str] = node.all("top")
        self.written: list[Var] = []
        self.slots: list[Slot] = []
        self.bottoms = [self._read(index, name) for index, name in enumerate(node.all("bottom"))]

    def settings(self, name: str) -> Node:
        """The message with the settings of this type of layer."""
        return self.node.message(name)

    def op_name(self) -> str:
        """The name of the layer, or a fresh one if an op has it already."""
        builder = self.scope.net.builder
        return builder.fresh(self.name) if self.name in builder.ops else self.name

    def op(
        self,
        name: str,
        outputs: Sequence[str],
        kind: str,
        inputs: Sequence[Var],
        /,
        **attributes: Attribute,
    ) -> list[Var]:
        """Add an op with results of the given names."""
        names, where = tuple(item.name for item in inputs), self.node.where
        self.scope.net.add(Op(name, kind, names, tuple(outputs), attributes, where=where))
        return [Var(self.scope.net, output) for output in outputs]

    def emit(self, kind: str, inputs: Sequence[Var], /, **attributes: Attribute) -> Var:
        """Add the op that makes the layer's next top."""
        return self.emit_many((), kind, inputs, **attributes)[0]

    def emit_many(
        self, labels: Sequence[str], kind: str, inputs: Sequence[Var], /, **attributes: Attribute
    ) -> list[Var]:
        """Add the op that makes the layer's next top and further results, which have labels."""
        top = self.tops[len(self.written)] if len(self.written) < len(self.tops) else self.name
        blob, name = self._blob(top), self.op_name()
        outputs = [blob, *(f"{name}/{label}" for label in labels)]
        results = self.op(name, outputs, kind, inputs, **attributes)
        self.put(top, results[0])
        return results

    def step(self, label: str, kind: str, inputs: Sequence[Var], /, **attributes: Attribute) -> Var:
        """Add an op on the way to a top."""
        name = self.scope.net.builder.fresh(f"{self.name}/{label}")
        return self.op(name, [name], kind, inputs, **attributes)[0]

    def put(self, top: str, var: Var, *, report: bool = True) -> None:
        """Make an existing blob a top."""
        self.scope.place(top, var, report=report)
        self.written.append(var)

    def parameter(
        self, label: str, shape: Sequence[int], filler: Filler | Node | None, trainable: bool = True
    ) -> Var:
        """The layer's next parameter, which another layer may own."""
        filler = filler if isinstance(filler, Filler) else filler_of(filler)
        specs = self.node.all("param")
        spec = specs[len(self.slots)] if len(self.slots) < len(specs) else None
        shape = tuple(shape)
        shared: str | None = spec.get("name") if spec is not None else None
        if spec is not None and shared and shared in self.scope.owners:
            self.slots.append(Slot(self.scope.owners[shared][0].name, shape))
            return self._borrow(spec, shared, shape)
        name = f"{self.name}/{label}"
        if shared:
            name = usable(shared if shared not in self.scope.tops else f"param/{shared}")
        self.slots.append(Slot(name, shape))
        builder, place = self.scope.net.builder, spec.where if spec else self.node.where
        builder.blob(name, shape, self.scope.net.dtype, where=place)
        said = spec if trainable else None
        lr, decay = (float(said.get(key, 1.0)) if said else 1.0 for key in _MULTIPLIERS)
        builder.state(
            name, filler=filler, trainable=trainable, lr_mult=lr, decay_mult=decay, where=place
        )
        var = Var(self.scope.net, name)
        if shared:
            self.scope.owners[shared] = (var, place)
        return var

    def axis(self, settings: Node, default: int = 1, name: str = "axis") -> int:
        """An axis of the first bottom, counted from 0."""
        x, value = self.bottoms[0], int(settings.get(name, default))
        count = len(x.shape)
        if not -count <= value < count:
            what = f"{name} is {value}, but {x.name!r} has {count} dimensions"
            raise settings.error(what, name, f"{-count} to {count - 1}", str(value))
        return value % count if value < 0 else value

    def check_counts(self, bottoms: tuple[int, int], tops: tuple[int, int]) -> None:
        """Refuse a layer with too few or too many blobs."""
        for what, (least, most) in (("bottom", bottoms), ("top", tops)):
            count = len(self.node.all(what))
            if not least <= count <= most:
                limit = f"{least} or more" if most > 99 else f"{least} to {most}"
                expected = f"{least}" if least == most else limit
                names = ", ".join(self.node.all(what)) or "none"
                message = f"layer {self.name!r} ({self.type}) has {count} {what}s"
                remedy = f"change the {what}s of the layer"
                raise self.node.error(message, what, expected, names, remedy)

    def check_parameters(self) -> None:
        """Refuse settings of parameters that the layer does not have."""
        given = len(self.node.all("param"))
        if given > len(self.slots):
            what = f"layer {self.name!r} ({self.type}) has {given} param entries"
            expected = f"at most {len(self.slots)}, one for each parameter"
            raise self.node.error(what, "param", expected, str(given), "remove the last of them")

    def unsupported(self, what: str, settings: Node, field: str) -> FormatError:
        """Something that Caffe can do and this importer cannot."""
        message = f"layer {self.name!r} ({self.type}): {what} is not supported"
        expected, remedy = "a setting that can be translated", f"change {field} or remove the layer"
        return settings.error(message, field, expected, what, remedy)

    def _read(self, index: int, name: str) -> Var:
        var = self.scope.blobs.get(name)
        if var is None:
            what = f"layer {self.name!r} reads {name!r}, which no layer before it writes"
            expected = "a top of an earlier layer of this phase, or an input"
            last = ", ".join(list(self.scope.blobs)[-8:]) or "none"
            found = f"{name!r}; the last written are {last}"
            remedy = "correct the name, or the phase of the layer that writes it"
            where, op = self.node.place("bottom", index), self.name
            raise FormatError(what, expected, found, remedy, where=where, op=op, blob=name)
        self.scope.unread.pop(name, None)
        flags = self.node.all("propagate_down")
        if index < len(flags) and not flags[index]:
            return self.step("stop", "StopGradient", [var])
        return var

    def _blob(self, top: str) -> str:
        """The name of the blob that the next top becomes."""
        if not top:
            raise self.node.error("a top has no name", "top", "a name", "''")
        if top not in self.scope.blobs:
            return usable(top)
        if top not in self.node.all("bottom"):
            expected = "each blob written by one layer, or over a layer's own bottom"
            other, remedy = f"a second layer, {self.name!r}", "give one of the tops another name"
            raise self.node.error(f"{top!r} is written twice", "top", expected, other, remedy)
        builder = self.scope.net.builder
        if self.name not in self.scope.tops and self.name not in builder.blobs:
            return self.name
        return builder.fresh(f"{usable(top)}/{self.name}")

    def _borrow(self, spec: Node, shared: str, shape: tuple[int, ...]) -> Var:
        owner, place = self.scope.owners[shared]
        state = self.scope.net.builder.states[owner.name]
        permissive = spec.get("share_mode", "STRICT") == "PERMISSIVE"
        fits = math.prod(owner.shape) == math.prod(shape) if permissive else owner.shape == shape
        if not fits:
            what = f"layer {self.name!r} shares {shared!r}, which has another size"
            expected = f"{list(owner.shape)}, as at {place}"
            remedy = "share parameters of equal sizes, or take another name"
            raise spec.error(what, "name", expected, str(list(shape)), remedy)
        for key in _MULTIPLIERS:
            value = getattr(state, key)
            if key in spec and spec.get(key) != value:
                what = f"shared parameter {shared!r} has two values of {key}"
                raise spec.error(what, key, f"{value}, as at {place}", str(spec.get(key)))
        if owner.shape == shape:
            return owner
        return self.step("shared", "Reshape", [owner], shape=shape)


def one_op(
    kind: str, message: str | None = None, *, axis: int | None = None, **defaults: Attribute
) -> Callable[[Layer], None]:
    """The translation of a layer that is one op: its attributes are fields of a message.

    `axis` and `defaults` are the values of attributes that the text does not set. A pair is the
    name of the field, where it is not that of the attribute, and the default.
    """

    def translate(layer: Layer) -> None:
        attributes = dict(defaults)
        if message is not None:
            settings = layer.settings(message)
            if axis is not None:
                attributes["axis"] = layer.axis(settings, axis)
            for name, default in defaults.items():
                field, value = default if isinstance(default, tuple) else (name, default)
                attributes[name] = settings.get(str(field), value)
        layer.emit(kind, layer.bottoms, **attributes)

    return translate


def filler_of(node: Node | None, default: Filler | None = None) -> Filler:
    """Our filler for Caffe's: by its name, with the settings that it reads."""
    if node is None:
        return default or Filler()
    kind: str = node.get("type", "constant")
    if kind not in _FILLERS:
        what = f"a {kind!r} filler is not supported"
        raise node.error(what, "type", "one of " + ", ".join(_FILLERS), repr(kind))
    values = {name: node.get(name) for name in _FILLERS[kind] if name in node}
    if values.get("sparse", 0) < 0:
        del values["sparse"]
    if "variance_norm" in values:
        values["variance"] = values.pop("variance_norm").lower()
    return Filler(kind, values)


def usable(name: str) -> str:
    """A name that a graph can have and that no transform takes for one of its own."""
    clean = "".join(c if c.isprintable() and not c.isspace() else "_" for c in name)
    return f"{clean}_" if clean in _RESERVED or clean.startswith(_PREFIXES) else clean
