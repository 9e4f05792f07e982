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
from purine.graph.yaml.read import OP_KEYS

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
    target = Path(path)
    try:
        put_in_place(target, text)
    except (OSError, ValueError) as error:
        what, expected = "cannot write the graph", "the path of a YAML file"
        raise unreadable(FormatError, target, error, what=what, expected=expected) from error


def _blob_entry(blob: Blob) -> dict[str, object]:
    entry: dict[str, object] = {"type": "blob", "name": blob.name}
    if blob.shape is not None:
        entry["size"] = blob.shape
    if blob.dtype != "float32":
        entry["dtype"] = blob.dtype
    if blob.layout:
        entry["layout"] = blob.layout
    return entry | _location_entry(blob.location)


def _op_entry(op: Op) -> dict[str, object]:
    taken = [key for key in op.attributes if key in OP_KEYS]
    if taken:
        raise GraphError(
            f"op {op.name!r} has an attribute {taken[0]!r}, a key that YAML needs",
            op=op,
            expected=f"attributes with names other than {', '.join(OP_KEYS)}",
            found=repr(taken[0]),
            remedy="rename the attribute",
        )
    outputs = [None if name == NOTHING else name for name in op.outputs]
    entry: dict[str, object] = {"type": "op", "op_type": op.kind, "name": op.name}
    entry |= {"inputs": op.inputs, "outputs": outputs, **op.attributes}
    entry |= _location_entry(op.location)
    if op.lane != "compute":
        number = op.lane.removeprefix("compute:")
        entry["thread"] = int(number) if number.isdigit() else op.lane
    return entry


def _state_entry(state: State) -> dict[str, object]:
    entry: dict[str, object] = {"type": "state", "blob": state.read}
    if state.next != state.read:
        entry["next"] = state.next
    if state.filler != Filler():
        if "type" in state.filler.attributes:
            raise GraphError(
                f"the filler of state {state.read!r} has an attribute 'type'",
                where=state.where,
                blob=state.read,
                expected="attributes with names other than type",
                found="'type'",
                remedy="rename the attribute",
            )
        entry["filler"] = {"type": state.filler.kind, **state.filler.attributes}
    if state.trainable:
        entry["trainable"] = True
    if state.lr_mult != 1.0:
        entry["lr_mult"] = float(state.lr_mult)
    if state.decay_mult != 1.0:
        entry["decay_mult"] = float(state.decay_mult)
    return entry


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
        raise FormatError(
            f"the text {match.string} cannot be written as YAML",
            expected="Unicode text",
            found=f"half of a surrogate pair, \\u{code:04x}",
            remedy="rename the node, or change the attribute",
        )
    return f"\\u{code:04x}"
