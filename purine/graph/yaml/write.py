"""Writing a graph as YAML, one entry per node, in the form of Purine's poster.

The text reads back to an equal graph, and other readers of YAML see the same values.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from purine.arguments import checked
from purine.errors import FormatError, GraphError
from purine.files import put_in_place, unreadable
from purine.graph.graph import Graph
from purine.graph.nodes import NOTHING, Blob, Filler, Location, Op, State
from purine.graph.yaml.read import OP_KEYS, UNBOUNDED

__all__ = ["flow", "save_yaml", "to_yaml"]

_PLAIN = re.compile(
    r"[A-Za-z_/](?:[A-Za-z0-9_./-]|:(?=[A-Za-z0-9]))*|(?:[0-9]{1,3}\.){3}[0-9]{1,3}"
)
_WORDS = frozenset(("true", "false", "yes", "no", "on", "off", "y", "n", "null"))
_UNPRINTABLE = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")


@checked
def to_yaml(graph: Graph) -> str:
    """The graph as YAML, one entry per line; default values are left out.

    >>> from purine.graph.builder import Builder
    >>> b = Builder()
    >>> _ = b.op("relu1", "Relu", [b.blob("x", (2, 3))], [b.blob("y_out", (2, 3))])
    >>> print(to_yaml(b.graph()), end="")
    - {type: blob, name: x, size: [2, 3]}
    - {type: blob, name: y_out, size: [2, 3]}
    - {type: op, op_type: Relu, name: relu1, inputs: [x], outputs: [y_out]}
    - {type: output, blob: ~}
    """
    entries: list[dict[str, object]] = [_blob_entry(blob) for blob in graph.blobs.values()]
    entries += [_op_entry(op) for op in graph.ops.values()]
    entries += [_state_entry(state) for state in graph.states.values()]
    for before, after in sorted(graph.control):
        entries.append({"type": "control", "before": before, "after": after})
    entries += [{"type": "output", "blob": name} for name in graph.outputs]
    if graph.sinks and not graph.outputs:  # without output entries, all sinks would be outputs
        entries.append({"type": "output", "blob": None})
    return "".join(f"- {flow(entry)}\n" for entry in entries) or "[]\n"


@checked
def save_yaml(graph: Graph, path: str | os.PathLike[str]) -> None:
    """Write the graph to a file; a failed write leaves the old content."""
    text = to_yaml(graph)
    try:
        put_in_place(Path(path), text)
    except (OSError, ValueError) as error:
        what, expected = "cannot write the graph", "the path of a YAML file"
        raise unreadable(FormatError, Path(path), error, expected, what) from error


def _blob_entry(blob: Blob) -> dict[str, object]:
    dtype, layout = ("dtype", blob.dtype, "float32"), ("layout", blob.layout, "")
    entry = {"type": "blob", "name": blob.name} | _given(("size", blob.shape, None), dtype, layout)
    return entry | _location_entry(blob.location)


def _op_entry(op: Op) -> dict[str, object]:
    for key in op.attributes:
        if key in OP_KEYS:
            what = f"op {op.name!r} has an attribute {key!r}, a key that YAML needs"
            expected = f"attributes with names other than {', '.join(OP_KEYS)}"
            raise GraphError(what, expected, repr(key), "rename the attribute", op=op)
    outputs = [None if name == NOTHING else name for name in op.outputs]
    entry: dict[str, object] = {"type": "op", "op_type": op.kind, "name": op.name}
    entry |= {"inputs": op.inputs, "outputs": outputs, **op.attributes}
    entry |= _location_entry(op.location)
    if op.lane != "compute":
        number = op.lane.removeprefix("compute:")
        entry["thread"] = int(number) if number.isdigit() else op.lane
    turns = ("every", op.every, 1), ("phase", op.phase, 0), ("worker", op.worker, 0)
    return entry | _given(*turns)


def _state_entry(state: State) -> dict[str, object]:
    name, filler = state.read, state.filler
    if "type" in filler.attributes:
        what = f"the filler of state {name!r} has an attribute 'type'"
        expected, remedy = "attributes with names other than type", "rename the attribute"
        raise GraphError(what, expected, "'type'", remedy, where=state.where, blob=name)
    return {"type": "state", "blob": name} | _given(
        ("next", state.next, name),
        ("filler", {"type": filler.kind, **filler.attributes}, {"type": Filler().kind}),
        ("trainable", state.trainable, False),
        ("lr_mult", float(state.lr_mult), 1.0),
        ("decay_mult", float(state.decay_mult), 1.0),
        ("staleness", UNBOUNDED if state.staleness is None else state.staleness, 0),
        ("shared", state.shared, ""),
    )


def _given(*items: tuple[str, object, object]) -> dict[str, object]:
    """The keys and values of triples (key, value, default) without those that are the default."""
    return {key: value for key, value, default in items if value != default}


def _location_entry(location: Location) -> dict[str, object]:
    if location == Location():
        return {}
    return {"location": {"ip": location.host, "device": location.device}}


def flow(value: object) -> str:
    """A value in YAML's flow style, in a form on which all readers of YAML agree."""
    if isinstance(value, str):
        return _string(value)
    if value is None:
        return "~"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):
        return _float(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_string(key)}: {flow(v)}" for key, v in value.items()) + "}"
    assert isinstance(value, Sequence)
    return "[" + ", ".join(map(flow, value)) + "]"


def _float(value: float) -> str:
    if math.isnan(value):
        return ".nan"
    if math.isinf(value):
        return ".inf" if value > 0 else "-.inf"
    digits, e, exponent = float.__repr__(value).partition("e")
    if "." not in digits:  # YAML 1.1 wants a point in every float
        digits += ".0"
    return digits + e + exponent


def _string(text: str) -> str:
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS:
        return text
    return _UNPRINTABLE.sub(_escape, json.dumps(text, ensure_ascii=False))


def _escape(match: re.Match[str]) -> str:
    code = ord(match.group())
    if 0xD800 <= code <= 0xDFFF:
        what, found = f"the text {match.string} cannot be written as YAML", f"\\u{code:04x}"
        remedy = "rename the node, or change the attribute"
        raise FormatError(what, "Unicode text", f"half of a surrogate pair, {found}", remedy)
    return f"\\u{code:04x}"
