"""The translation of one layer: its bottoms and parameters, and the ops that it adds.

Caffe lets a layer overwrite its bottom, and has one namespace each for layers, blobs and
parameters. A graph does neither, so a `Scope` maps Caffe's blob names to ours, layer by layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from purine.analysis.infer import infer_op, spec_of
from purine.errors import FormatError
from purine.graph import Attribute, Filler, Op
from purine.importers.caffe.named import NamedSource
from purine.importers.caffe.schema import Node
from purine.importers.caffe.weights import Slot, StoredLayer
from purine.kinds.net import Net, Var
from purine.registry.clock import ITERATION, SEED, add_clock
from purine.registry.kind import IMPLIED
from purine.registry.lookup import lookup

__all__ = ["Layer", "Scope", "filler_of", "one_op", "usable"]

_RESERVED = (SEED, ITERATION, "lr")
_PREFIXES = ("grad/", "update/", "momentum/", "micro")


@dataclass(slots=True)
class Scope:
    """A net that is being translated for one phase.

    `blobs` maps Caffe's blob names to ours, `unread` holds those that no layer has read yet, `tops`
    all names that any layer of the phase writes, `whole` the blobs that hold labels or indices.
    Relative paths begin at one of `roots`. `sources` and `stored` are the layers that read samples
    and that have parameters.
    """

    net: Net
    phase: str
    tops: frozenset[str]
    whole: frozenset[str]
    batch: int | None = None
    image: tuple[int, ...] | None = None
    crop: int | None = None
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    roots: Sequence[Path] = ()
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
        if top in self.shapes:
            given = (given[0] if given else 1, *self.shapes[top])
        return tuple(given) if self.batch is None or not given else (self.batch, *given[1:])

    def place(self, top: str, var: Var, *, report: bool = True) -> None:
        """Let a Caffe name stand for a blob from here on."""
        self.blobs[top] = var
        if report:
            self.unread[top] = var.name

    def op(
        self,
        name: str,
        kind: str,
        inputs: Sequence[Var],
        attributes: Mapping[str, Attribute],
        outputs: Sequence[str],
        where: str,
    ) -> list[Var]:
        """Add an op with results of the given names."""
        builder = self.net.builder
        known = lookup(Op(name, kind, (), ()))
        implied = [item for item in known.inputs if item in IMPLIED]
        if implied:
            add_clock(builder)
        said = {k: v for k, v in attributes.items() if _says(known.attributes.get(k), v)}
        names = (*(item.name for item in inputs), *implied)
        op = Op(name, kind, names, tuple(outputs), said, where=where)
        for error in known.problems(op):
            raise error
        specs = infer_op(op, [spec_of(builder.blobs[item]) for item in names])
        assert len(specs) == len(outputs), op
        for output, spec in zip(outputs, specs, strict=True):
            assert spec is not None
            builder.blob(output, spec.shape, spec.dtype, where=where)
        builder.add(op)
        return [Var(self.net, output) for output in outputs]


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

    def emit(
        self,
        kind: str,
        inputs: Sequence[Var],
        attributes: Mapping[str, Attribute] | None = None,
        *,
        more: Sequence[str] = (),
    ) -> Var:
        """Add the op that makes the layer's next top; `more` labels further results of the op."""
        top = self.tops[len(self.written)] if len(self.written) < len(self.tops) else self.name
        blob = self._blob(top)
        name = self.scope.net.builder.fresh(self.name) if self._taken() else self.name
        names = [blob, *(f"{name}/{label}" for label in more)]
        first = self.scope.op(name, kind, inputs, attributes or {}, names, self.node.where)[0]
        self.put(top, first)
        return first

    def step(
        self,
        kind: str,
        inputs: Sequence[Var],
        attributes: Mapping[str, Attribute] | None = None,
        *,
        label: str,
    ) -> Var:
        """Add an op on the way to a top."""
        name = self.scope.net.builder.fresh(f"{self.name}/{label}")
        return self.scope.op(name, kind, inputs, attributes or {}, [name], self.node.where)[0]

    def put(self, top: str, var: Var, *, report: bool = True) -> None:
        """Make an existing blob a top."""
        self.scope.place(top, var, report=report)
        self.written.append(var)

    def parameter(
        self, label: str, shape: Sequence[int], filler: Filler, *, trainable: bool = True
    ) -> Var:
        """The layer's next parameter, which another layer may own."""
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
        builder.state(
            name,
            filler=filler,
            trainable=trainable,
            lr_mult=_multiplier(spec, "lr_mult") if trainable else 1.0,
            decay_mult=_multiplier(spec, "decay_mult") if trainable else 1.0,
            where=place,
        )
        var = Var(self.scope.net, name)
        if shared:
            self.scope.owners[shared] = (var, place)
        return var

    def loss_weight(self) -> float:
        """The weight of the first top of a loss layer."""
        weights = self.node.all("loss_weight")
        return float(weights[0]) if weights else 1.0

    def axis(self, settings: Node, name: str, default: int, x: Var, *, extra: int = 0) -> int:
        """An axis of x, counted from 0; `extra` allows places behind the last."""
        value: int = settings.get(name, default)
        count = len(x.shape)
        if not -count <= value < count + extra:
            what = f"{name} is {value}, but {x.name!r} has {count} dimensions"
            expected = f"{-count} to {count - 1 + extra}"
            raise settings.error(what, name, expected, str(value))
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
            remedy = "remove the last of them"
            raise self.node.error(what, "param", expected, str(given), remedy=remedy)

    def unsupported(self, what: str, settings: Node, field: str) -> FormatError:
        """Something that Caffe can do and this importer cannot."""
        message = f"layer {self.name!r} ({self.type}): {what} is not supported"
        expected, remedy = "a setting that can be translated", f"change {field} or remove the layer"
        return settings.error(message, field, expected, what, remedy)

    def _read(self, index: int, name: str) -> Var:
        var = self.scope.blobs.get(name)
        if var is None:
            known = ", ".join(list(self.scope.blobs)[-8:]) or "none"
            raise FormatError(
                f"layer {self.name!r} reads {name!r}, which no layer before it writes",
                where=self.node.place("bottom", index),
                op=self.name,
                blob=name,
                expected="a top of an earlier layer of this phase, or an input",
                found=f"{name!r}; the last written are {known}",
                remedy="correct the name, or the phase of the layer that writes it",
            )
        self.scope.unread.pop(name, None)
        flags = self.node.all("propagate_down")
        if index < len(flags) and not flags[index]:
            return self.step("StopGradient", [var], label="stop")
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

    def _taken(self) -> bool:
        return self.name in self.scope.net.builder.ops

    def _borrow(self, spec: Node, shared: str, shape: tuple[int, ...]) -> Var:
        owner, place = self.scope.owners[shared]
        state = self.scope.net.builder.states[owner.name]
        permissive = spec.get("share_mode", "STRICT") == "PERMISSIVE"
        fits = math.prod(owner.shape) == math.prod(shape) if permissive else owner.shape == shape
        if not fits:
            what = f"layer {self.name!r} shares {shared!r}, which has another size"
            expected = f"{list(owner.shape)}, as at {place}"
            remedy = "share parameters of equal sizes, or take another name"
            raise spec.error(what, "name", expected, str(list(shape)), remedy=remedy)
        for key, value in (("lr_mult", state.lr_mult), ("decay_mult", state.decay_mult)):
            if key in spec and spec.get(key) != value:
                what = f"shared parameter {shared!r} has two values of {key}"
                expected = f"{value}, as at {place}"
                raise spec.error(what, key, expected, str(spec.get(key)))
        if owner.shape == shape:
            return owner
        return self.step("Reshape", [owner], {"shape": shape}, label="shared")


def one_op(kind: str, message: str | None = None, **defaults: Attribute) -> Callable[[Layer], None]:
    """The translation of a layer that is one op: its attributes are fields of a message."""

    def translate(layer: Layer) -> None:
        settings = None if message is None else layer.settings(message)
        attributes = {n: settings.get(n, v) for n, v in defaults.items()} if settings else {}
        layer.emit(kind, layer.bottoms, attributes)

    return translate


def filler_of(node: Node | None, default: Filler | None = None) -> Filler:
    """Our filler for Caffe's: by its name, with the settings that it reads."""
    if node is None:
        return default or Filler()
    kind: str = node.get("type", "constant")
    values: dict[str, Attribute] = {}
    settings = {
        "constant": ("value",),
        "uniform": ("min", "max"),
        "gaussian": ("mean", "std", "sparse"),
        "xavier": ("variance_norm",),
        "msra": ("variance_norm",),
        "bilinear": (),
        "positive_unitball": (),
    }
    if kind not in settings:
        what = f"a {kind!r} filler is not supported"
        raise node.error(what, "type", "one of " + ", ".join(settings), repr(kind))
    for name in settings[kind]:
        if name in node and not (name == "sparse" and node.get(name) < 0):
            key, value = name, node.get(name)
            if name == "variance_norm":
                key, value = "variance", value.lower()
            values[key] = value
    return Filler(kind, values)


def usable(name: str) -> str:
    """A name that a graph can have and that no transform takes for one of its own."""
    clean = "".join(c if c.isprintable() and not c.isspace() else "_" for c in name)
    return f"{clean}_" if clean in _RESERVED or clean.startswith(_PREFIXES) else clean


def _multiplier(spec: Node | None, name: str) -> float:
    return 1.0 if spec is None else float(spec.get(name, 1.0))


def _says(attr: object, value: Attribute) -> bool:
    default = getattr(attr, "default", None)
    return attr is None or default != value or type(default) is not type(value)
