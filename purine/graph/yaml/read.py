"""Reading a graph from the entries of a YAML file.

Every node of the graph gets the line of its entry. Every mistake is a `FormatError` with the line
and the key; the first is raised, with the others in `more`. The graph is not checked here: `verify`
does that.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from purine.arguments import checked
from purine.errors import FormatError, GraphError, PurineError
from purine.graph.builder import Builder
from purine.graph.graph import Graph
from purine.graph.names import restored
from purine.graph.nodes import NOTHING, Attribute, Filler, Location, Op
from purine.graph.yaml.nodes import List, Map, Node, Scalar, describe, entries, read_text
from purine.nearest import nearest_name

__all__ = ["OP_KEYS", "UNBOUNDED", "from_yaml", "load_yaml"]

OP_KEYS = (
    *("type", "op_type", "name", "inputs", "outputs", "location", "thread"),
    *("every", "phase", "worker"),
)
"""The keys of an op entry that are not attributes."""
UNBOUNDED = "any"
"""Stands for a staleness without a bound."""
_STATE_KEYS = (
    *("type", "blob", "next", "filler", "trainable", "lr_mult", "decay_mult"),
    *("staleness", "shared"),
)

T = TypeVar("T")


@checked
def from_yaml(text: str, *, file: str = "<text>") -> Graph:
    """The graph in a YAML text; `file` is the name of the text in errors.

    Blobs that an op writes and no entry declares are added without a shape. Without `output`
    entries the outputs are the sinks. The graph is not verified.

    >>> print(from_yaml('''
    ... - type: blob
    ...   name: bottom
    ...   size: [2, 3]
    ... - {type: op, op_type: Relu, name: relu1, inputs: [bottom], outputs: [top], thread: 1}
    ... '''))
    top = relu1: Relu(bottom) lane compute:1    # float32 ?
    input bottom: float32 2x3
    output top
    """
    builder = Builder()
    outputs_named = False
    mistakes: list[PurineError] = []
    try:
        for node in entries(text, file):
            try:
                outputs_named |= _read_entry(node, file, builder) == "output"
            except PurineError as error:
                mistakes.append(error)
    except FormatError as error:  # the rest of the text cannot be parsed
        mistakes.append(error)
    if mistakes:
        mistakes[0].more = tuple(mistakes[1:])
        raise mistakes[0]
    for op in builder.ops.values():
        for name in op.results:
            if name not in builder.blobs:
                builder.blob(name, None, location=op.location, where=op.where)
    if not outputs_named:
        builder.outputs = list(builder.graph().sinks)
    return restored(builder.graph())


@checked
def load_yaml(path: str | os.PathLike[str]) -> Graph:
    """Read a graph from a file; errors and nodes carry `path:line`."""
    source = Path(path)
    return from_yaml(read_text(source, "graph", FormatError), file=str(source))


def _read_entry(node: Node, file: str, builder: Builder) -> str:
    entry = _Fields(node, "an entry", file)
    kind = entry.text("type")
    if kind not in _ENTRIES:
        raise entry.unknown("type", "type of entry", kind, _ENTRIES)
    entry.what, read_entry = _ENTRIES[kind]
    read_entry(entry, builder)
    return kind


class _Fields:
    """A mapping in the text, and readers for its values; `what` names it in errors."""

    def __init__(self, node: Node, what: str, file: str) -> None:
        self.what = what
        self.file = file
        self.where = f"{file}:{node.line}"
        self.keys: dict[str, Node] = {}
        if not isinstance(node, Map):
            raise self.wrong(node, "is not a mapping", "a mapping", "write {key: value, ...}")
        for key_node, value in node.pairs:
            key = self.as_text(key_node, "has a key that")
            if key in self.keys:
                wrong = f"has the key {key!r} twice"
                raise self.wrong(key_node, wrong, "every key once", "remove one")
            self.keys[key] = value

    def node(self, key: str) -> Node:
        if key not in self.keys:
            what, expected = f"{self.what} has no {key!r}", f"the key {key!r}"
            found = f"the keys {', '.join(self.keys)}" if self.keys else "no keys"
            raise FormatError(what, expected, found, f"add {key!r}", where=self.where)
        return self.keys[key]

    def text(self, key: str, default: str | None = None) -> str:
        if key not in self.keys and default is not None:
            return default
        return self.as_text(self.node(key), f"has a {key!r} that")

    def texts(self, key: str, *, null: str | None = None) -> tuple[str, ...]:
        """A list of texts; with `null`, null items are read as that text."""
        return tuple(
            self.as_text(item, f"has an item in {key!r} that")
            if null is None or not isinstance(item, Scalar) or item.value is not None
            else null
            for item in self.items(key)
        )

    def items(self, key: str) -> list[Node]:
        node = self.node(key)
        if not isinstance(node, List):
            wrong, remedy = f"has a {key!r} that is not a list", "write [a], also for one item"
            raise self.wrong(node, wrong, "a list", remedy)
        return node.items

    def sizes(self, key: str) -> tuple[int, ...]:
        sizes = []
        for item in self.items(key):
            size = item.value if isinstance(item, Scalar) else None
            if isinstance(size, bool) or not isinstance(size, int) or size < 0:
                wrong = f"has a {key!r} with a wrong item"
                raise self.wrong(item, wrong, "whole numbers from 0 up")
            sizes.append(size)
        return tuple(sizes)

    def truth(self, key: str) -> bool:
        """A truth value, false if it is missing."""
        node = self.keys.get(key, Scalar(0, False))
        if not isinstance(node, Scalar) or not isinstance(node.value, bool):
            raise self.wrong(node, f"has a {key!r} that is neither true nor false", "true or false")
        return node.value

    def number(self, key: str, default: float) -> float:
        node = self.keys.get(key, Scalar(0, default))
        value = node.value if isinstance(node, Scalar) else None
        if isinstance(value, int | float) and not isinstance(value, bool):
            try:
                return float(value)
            except OverflowError:
                pass
        raise self.wrong(node, f"has a {key!r} that is not a number of fair size", "a number")

    def count(self, key: str, default: int) -> int:
        node = self.keys.get(key, Scalar(0, default))
        value = node.value if isinstance(node, Scalar) else None
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.wrong(node, f"has a {key!r} that is no whole number", "a whole number")
        return value

    def bound(self, key: str) -> int | None:
        """A whole number, 0 if it is missing; None where the entry says that there is no bound."""
        node = self.keys.get(key)
        unbounded = isinstance(node, Scalar) and node.value == UNBOUNDED
        return None if unbounded else self.count(key, 0)

    def location(self) -> Location:
        if "location" not in self.keys:
            return Location()
        fields = _Fields(self.keys["location"], "a location", self.file)
        fields.only("ip", "device")
        host = fields.text("ip", Location().host)
        if "device" not in fields.keys:
            return Location(host)
        return fields.numbered("device", lambda device: Location(host, device), "cpu")

    def lane(self) -> str:
        if "thread" not in self.keys:
            return "compute"
        return self.numbered("thread", lambda lane: Op("", "", (), (), lane=lane).lane, "compute")

    def numbered(self, key: str, make: Callable[[str], T], prefix: str) -> T:
        """What `make` returns for a text; a number K stands for `prefix:K`."""
        node = self.keys[key]
        value = node.value if isinstance(node, Scalar) else None
        if isinstance(value, int) and not isinstance(value, bool):
            value = "compute" if (prefix, value) == ("compute", 0) else f"{prefix}:{value}"
        try:
            return make(value if isinstance(value, str) else "?")
        except GraphError as error:
            expected = f"a number K for {prefix}:K, or {error.expected}"
            raise self.wrong(node, f"has a wrong {key!r}", expected, error.remedy) from None

    def as_text(self, node: Node, whose: str) -> str:
        if not isinstance(node, Scalar) or not isinstance(node.value, str):
            remedy = "quote it if it is meant as text"
            raise self.wrong(node, f"{whose} is not text", "text", remedy)
        if not node.value:
            raise self.wrong(node, f"{whose} is empty", "at least one character")
        return node.value

    def as_value(self, node: Node, key: str) -> Attribute:
        if isinstance(node, Scalar):
            return node.value
        if isinstance(node, List):
            return tuple([self.as_value(item, key) for item in node.items])
        raise self.wrong(node, f"has a {key!r} that is not a value", "a number, a text or a list")

    def only(self, *known: str) -> None:
        for key in self.keys:
            if key not in known:
                raise self.unknown(key, f"key of {self.what}", key, known)

    def unknown(self, key: str, what: str, word: str, known: Iterable[str]) -> FormatError:
        what, expected = f"{word!r} is no {what}", f"one of {', '.join(known)}"
        remedy = nearest_name(word, known, f"remove or correct {word!r}")
        where = f"{self.file}:{self.keys[key].line}"
        return FormatError(what, expected, repr(word), remedy, where=where)

    def wrong(
        self, node: Node, wrong: str, expected: str, remedy: str | None = "correct it"
    ) -> FormatError:
        what, where = f"{self.what} {wrong}", f"{self.file}:{node.line}"
        return FormatError(what, expected, describe(node), remedy, where=where)


def _blob(entry: _Fields, builder: Builder) -> None:
    entry.only("type", "name", "size", "dtype", "layout", "location")
    shape = entry.sizes("size") if "size" in entry.keys else None
    dtype, layout = entry.text("dtype", "float32"), entry.text("layout", "")
    builder.blob(entry.text("name"), shape, dtype, entry.location(), entry.where, layout=layout)


def _op(entry: _Fields, builder: Builder) -> None:
    builder.op(
        entry.text("name"),
        entry.text("op_type"),
        entry.texts("inputs"),
        entry.texts("outputs", null=NOTHING),
        {k: entry.as_value(node, k) for k, node in entry.keys.items() if k not in OP_KEYS},
        location=entry.location(),
        lane=entry.lane(),
        where=entry.where,
        every=entry.count("every", 1),
        phase=entry.count("phase", 0),
        worker=entry.count("worker", 0),
    )


def _state(entry: _Fields, builder: Builder) -> None:
    entry.only(*_STATE_KEYS)
    filler = Filler()
    if "filler" in entry.keys:
        fields = _Fields(entry.keys["filler"], "a filler", entry.file)
        settings = {k: fields.as_value(n, k) for k, n in fields.keys.items() if k != "type"}
        filler = Filler(fields.text("type"), settings)
    read = entry.text("blob")
    builder.state(
        read,
        entry.text("next", read),
        filler,
        trainable=entry.truth("trainable"),
        lr_mult=entry.number("lr_mult", 1.0),
        decay_mult=entry.number("decay_mult", 1.0),
        where=entry.where,
        staleness=entry.bound("staleness"),
        shared=entry.text("shared", ""),
    )


def _control(entry: _Fields, builder: Builder) -> None:
    entry.only("type", "before", "after")
    builder.control.add((entry.text("before"), entry.text("after")))


def _output(entry: _Fields, builder: Builder) -> None:
    entry.only("type", "blob")
    blob = entry.node("blob")
    if not isinstance(blob, Scalar) or blob.value is not None:  # null means no outputs
        builder.outputs.append(entry.text("blob"))


_ENTRIES: dict[str, tuple[str, Callable[[_Fields, Builder], None]]] = {
    "blob": ("a blob entry", _blob),
    "op": ("an op entry", _op),
    "state": ("a state entry", _state),
    "control": ("a control entry", _control),
    "output": ("an output entry", _output),
}
