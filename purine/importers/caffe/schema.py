"""Which fields Caffe's messages have, of which types; and messages read by them.

A `Node` that exists has known fields of the right types only, and remembers where each was written.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from purine.errors import FormatError
from purine.importers.caffe.tables import ENUMS, MESSAGES
from purine.importers.caffe.text import Entry, Message, Token, parse
from purine.nearest import nearest_name, nearest_names

__all__ = ["Node", "read"]

Value: TypeAlias = "bool | int | float | str | Node"

_RANGES = {"int": (-(2**31), 2**31 - 1), "uint": (0, 2**32 - 1), "int64": (-(2**63), 2**63 - 1)}
_WORDS = {
    "int": "a whole number",
    "uint": "a whole number, 0 or more",
    "int64": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "a text in quotes",
}
_BOOLS = dict.fromkeys(("true", "True", "t", "1"), True)
_BOOLS |= dict.fromkeys(("false", "False", "f", "0"), False)


@dataclass(frozen=True, slots=True)
class Node:
    """A message of a known type."""

    type: str
    file: str
    line: int
    fields: dict[str, list[tuple[Any, int]]] = field(default_factory=dict)

    @property
    def where(self) -> str:
        return f"{self.file}:{self.line}"

    def __contains__(self, name: str) -> bool:
        self._known(name)
        return name in self.fields

    def all(self, name: str) -> list[Any]:
        """All values of a field, in the order of the text."""
        self._known(name)
        return [value for value, _ in self.fields.get(name, [])]

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a field that may occur once, or its default."""
        values = self.all(name)
        return values[-1] if values else default

    def message(self, name: str) -> Node:
        """A message within this one; an empty one where the text has none."""
        message = self.get(name)
        if message is None:
            return Node(MESSAGES[self.type][name][0], self.file, self.line)
        assert isinstance(message, Node)
        return message

    def place(self, name: str, index: int = -1) -> str:
        """Where a field was written; where the message was, if the field is missing."""
        values = self.fields.get(name)
        return f"{self.file}:{values[index][1] if values else self.line}"

    def positive(self, name: str, default: int | None = None) -> int:
        """A count of at least 1."""
        value = self.get(name, default)
        if value is None:
            raise self.error(f"{name} is missing", name, f"{name} in {self.type}", "none")
        if value < 1:
            raise self.wrong(name, value, "1 or more")
        assert isinstance(value, int)
        return value

    def error(
        self, what: str, name: str, expected: str, found: str, remedy: str | None = None
    ) -> FormatError:
        """A mistake in field `name` of this message; the error tells its line."""
        remedy = remedy or f"change {name}"
        return FormatError(what, expected, found, remedy, where=self.place(name))

    def wrong(self, name: str, value: object, expected: str) -> FormatError:
        """A field with a value that it cannot have."""
        return self.error(f"{name} is {value}", name, expected, str(value))

    def _known(self, name: str) -> None:
        assert name in MESSAGES[self.type], f"{self.type} has no field {name}"


def read(text: str, type: str, *, file: str = "<text>") -> Node:
    """A text as a message of a type.

    >>> read('base_lr: 1e-2 stepvalue: [10, 20]', "SolverParameter").all("stepvalue")
    [10, 20]
    """
    root = parse(text, file=file)
    top = Node(type, file, root.line)
    waiting: list[tuple[Message, Node]] = [(root, top)]
    while waiting:
        message, node = waiting.pop()
        fields = MESSAGES[node.type]
        for entry in message.entries:
            where = f"{file}:{entry.line}"
            if entry.name not in fields:
                found, expected = repr(entry.name), f"a field of {node.type}"
                remedy = nearest_name(entry.name, fields, f"remove {found}", cutoff=0.5)
                what = f"{node.type} has no field {found}"
                raise FormatError(what, expected, found, remedy, where=where)
            kind, repeated = fields[entry.name]
            values = node.fields.setdefault(entry.name, [])
            if values and not repeated:
                what, first = f"{entry.name} is given twice", f"a first one in line {values[0][1]}"
                remedy = "remove one of them"
                raise FormatError(what, f"{entry.name} once", first, remedy, where=where)
            if kind not in MESSAGES:
                values.append((_scalar(entry, kind, file), entry.line))
            elif isinstance(entry.value, Message):
                inner = Node(kind, file, entry.line)
                values.append((inner, entry.line))
                waiting.append((entry.value, inner))
            else:
                raise _mistyped(entry, file, "a message in braces")
    return top


def _scalar(entry: Entry, kind: str, file: str) -> bool | int | float | str:
    names, value = ENUMS.get(kind, ()), entry.value
    expected = _WORDS.get(kind) or "one of " + ", ".join(filter(None, names))
    if isinstance(value, Message):
        raise _mistyped(entry, file, expected)
    parsed: bool | int | float | str | None
    if names:
        parsed = _choice(value, names)
    elif kind == "string":
        parsed = value.text if value.form == "string" else None
    elif kind == "bool":
        parsed = _BOOLS.get(value.text) if value.form != "string" else None
    elif kind == "float":
        parsed = _float(value)
    else:
        parsed = _whole(value, *_RANGES[kind])
    if parsed is None:
        raise _mistyped(entry, file, expected, names)
    return parsed


def _choice(value: Token, names: Sequence[str]) -> str | None:
    """A name of an enum, which may also be written as its number."""
    if value.form == "word" and value.text in names:
        return value.text
    number = _whole(value, 0, len(names) - 1)
    return None if number is None else names[number] or None


def _whole(value: Token, least: int, most: int) -> int | None:
    if value.form != "number":
        return None
    text = value.text.lower()
    octal = text.lstrip("+-").startswith("0") and text.lstrip("+-0").isdigit()
    try:
        number = int(text, 16 if "x" in text else 8 if octal else 10)
    except ValueError:
        return None
    return number if least <= number <= most else None


def _float(value: Token) -> float | None:
    if value.form == "string":
        return None
    text = value.text.lower()
    if value.form == "word":
        return {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}.get(text)
    if "x" in text:
        return float(int(text, 16)) if len(text) < 20 else None
    return float(text.removesuffix("f"))


def _mistyped(entry: Entry, file: str, expected: str, names: Sequence[str] = ()) -> FormatError:
    found = "a message" if isinstance(entry.value, Message) else repr(entry.value.text[:60])
    word, known = found.strip("'").upper(), filter(None, names)
    what, expected = f"{entry.name} cannot be {found}", f"{entry.name} to be {expected}"
    remedy = nearest_names(word, known, f"change {entry.name}", most=1, cutoff=0.5)
    return FormatError(what, expected, found, remedy, where=f"{file}:{entry.line}")
