"""Parsing YAML text into plain nodes that know their line.

All YAML is parsed here: graphs, job files and the `config.yaml` of runs. The text is not trusted:
its size and nesting are limited, aliases may repeat few nodes only, and a node cannot contain
itself. Scalars follow YAML 1.2. Those that YAML 1.1 reads differently (`no`, `010`, `1:30`) are
errors.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import yaml

from purine.errors import ConfigError, FormatError
from purine.files import read_bounded, unreadable

try:
    from yaml import CSafeLoader as _Loader
except ImportError:  # PyYAML without libyaml
    from yaml import SafeLoader as _Loader  # type: ignore[assignment]

__all__ = ["List", "Map", "Node", "Scalar", "describe", "document", "entries", "read_text"]

_BYTES = 64 << 20  # of a file
_DEPTH = 64  # levels of nesting
_ALIAS = 1000  # nodes that one alias may repeat
_ALIASES = 100_000  # nodes that all aliases of a text may repeat
_DIGITS = 300  # of an integer: as many as a float can have

_CONSTANTS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".inf", "+.inf", ".Inf", "+.Inf", ".INF", "+.INF"), math.inf),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), -math.inf),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan),
}
_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]*)|0x[0-9a-fA-F]+")
_FLOAT = re.compile(
    r"[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*)(?:[eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+"
)
_DISPUTED_WORDS = frozenset(("yes", "no", "on", "off"))
_DISPUTED_NUMBER = re.compile(
    r"[-+]?0[0-9_]+|0o[0-7]+|[-+]?0b[01_]+|[-+]?0x[0-9a-fA-F_]+"
    r"|[-+]?[0-9][0-9_]*(?:\.[0-9_]*)?|[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?"
)
_FORBIDDEN = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True, slots=True)
class Scalar:
    """Null, a truth value, a number or text."""

    line: int
    value: bool | int | float | str | None
    size: int = 1


@dataclass(frozen=True, slots=True)
class List:
    """A sequence; `size` counts its nodes at all levels, including those that aliases repeat."""

    line: int
    items: list[Node]
    size: int


@dataclass(frozen=True, slots=True)
class Map:
    """Pairs of key and value, in the order of the text."""

    line: int
    pairs: list[tuple[Node, Node]]
    size: int


Node: TypeAlias = Scalar | List | Map

_TaggedEvent: TypeAlias = yaml.ScalarEvent | yaml.SequenceStartEvent | yaml.MappingStartEvent
_Error: TypeAlias = type[FormatError] | type[ConfigError]


def read_text(path: Path, what: str, error: _Error) -> str:
    """The text of a YAML file in UTF-8; `what` names it in errors, which are of class `error`."""
    try:
        data = read_bounded(path, _BYTES)
    except (OSError, ValueError) as cause:
        expected = f"the path of a YAML file of at most {_BYTES >> 20} MiB"
        raise unreadable(error, path, cause, expected, f"cannot read the {what}") from cause
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as cause:
        line = data.count(b"\n", 0, cause.start) + 1
        found = f"the byte 0x{data[cause.start]:02x} at offset {cause.start}"
        what, remedy = "the file is not UTF-8 text", "save the file as UTF-8, or name another file"
        raise error(what, "YAML in UTF-8", found, remedy, where=f"{path}:{line}") from None


def entries(text: str, file: str) -> Iterator[Node]:
    """The items of the list in a text, one by one; `file` is the name of the text in errors."""
    return _Parser(text, file, FormatError).entries()


def document(text: str, file: str) -> Node | None:
    """The value in the text of a job, or None for an empty text; errors are `ConfigError`."""
    parser = _Parser(text, file, ConfigError)
    with parser.events() as start:
        return None if start is None else parser.node(start, 0)


def describe(node: Node) -> str:
    """A node in words, for messages."""
    if isinstance(node, List):
        return "a list"
    if isinstance(node, Map):
        return "a mapping"
    value = node.value
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return f"the text {_short(value)!r}"
    return f"the {'integer' if isinstance(value, int) else 'float'} {value}"


class _Parser:
    """Makes nodes of PyYAML's events; PyYAML's composer recurses in C without a limit."""

    def __init__(self, text: str, file: str, error: _Error) -> None:
        self.file = file
        self.text = text
        self.error = error
        self.anchors: dict[str, Node] = {}
        self.repeated = 0
        self.key = ""  # the key whose value is being read
        bad = _FORBIDDEN.search(text)
        if bad:
            line, found = text.count("\n", 0, bad.start()) + 1, f"U+{ord(bad.group()):04X}"
            what = "the text has a character that YAML does not allow"
            remedy = "remove it, or write it as an escape in double quotes"
            raise self.wrong(line, what, "printable characters", f"the character {found}", remedy)

    def entries(self) -> Iterator[Node]:
        with self.events() as start:
            if start is None:
                expected, remedy = "a list of entries", "write [] at least"
                raise self.wrong(1, "the text is empty", expected, "nothing", remedy)
            if not isinstance(start, yaml.SequenceStartEvent):
                top = self.node(start, 0)
                found, remedy = describe(top), "begin each entry with '- '"
                if isinstance(top, Map):
                    found, remedy = f"{found} (a job file?)", f"{remedy}; a job is for purine train"
                raise self.wrong(top.line, "a graph is a list of entries", "a list", found, remedy)
            self.allow_tag(start, "seq")
            yield from self.items(0)

    @contextmanager
    def events(self) -> Iterator[yaml.Event | None]:
        """Parse a text of one document; yields its first event, None for an empty text."""
        self.loader = _Loader(self.text)
        try:
            self.event()  # the stream starts
            if isinstance(self.event(), yaml.StreamEndEvent):
                yield None
                return
            yield self.event()
            self.event()  # the document ends
            event = self.event()
            if not isinstance(event, yaml.StreamEndEvent):
                found, remedy = "a second document", "join them"
                raise self.wrong(_line(event), "the text goes on", "one document", found, remedy)
        finally:
            self.loader.dispose()

    def event(self) -> yaml.Event:
        try:
            event = self.loader.get_event()
        except (yaml.YAMLError, ValueError, OverflowError) as error:
            raise self.syntax_error(error) from None
        assert isinstance(event, yaml.Event)
        return event

    def node(self, event: yaml.Event, depth: int) -> Node:
        if depth > _DEPTH:
            what, expected = "the text is nested too deeply", f"at most {_DEPTH} levels"
            raise self.wrong(_line(event), what, expected, "more", "make it flatter")
        node: Node
        if isinstance(event, yaml.ScalarEvent):
            node = Scalar(_line(event), self.scalar(event))
        elif isinstance(event, yaml.AliasEvent):
            return self.alias(event)
        elif isinstance(event, yaml.SequenceStartEvent):
            self.allow_tag(event, "seq")
            items = list(self.items(depth))
            node = List(_line(event), items, 1 + sum(item.size for item in items))
        else:
            assert isinstance(event, yaml.MappingStartEvent)
            self.allow_tag(event, "map")
            pairs = self.pairs(depth)
            node = Map(_line(event), pairs, 1 + sum(key.size + value.size for key, value in pairs))
        if event.anchor is not None:
            self.anchors[event.anchor] = node
        return node

    def items(self, depth: int) -> Iterator[Node]:
        while not isinstance(event := self.event(), yaml.SequenceEndEvent):
            yield self.node(event, depth + 1)

    def pairs(self, depth: int) -> list[tuple[Node, Node]]:
        nodes, outer = [], self.key
        while not isinstance(event := self.event(), yaml.MappingEndEvent):
            self.key = ""
            key = self.node(event, depth + 1)
            self.key = f"{key.value}: " if isinstance(key, Scalar) else ""
            nodes.append((key, self.node(self.event(), depth + 1)))
        self.key = outer
        return nodes

    def alias(self, event: yaml.AliasEvent) -> Node:
        name = event.anchor
        assert name is not None
        node = self.anchors.get(name)
        if node is None:
            what = f"the alias *{_short(name)} stands for nothing"
            expected = "an anchor that is complete before it"
            found = f"no &{_short(name)} before, or one that contains this alias"
            raise self.wrong(_line(event), what, expected, found, "write the value out")
        self.repeated += node.size
        for size, most, all_ in ((node.size, _ALIAS, ""), (self.repeated, _ALIASES, " in all")):
            if size > most:
                what = f"the alias *{_short(name)} stands for too much"
                expected, found = f"aliases for at most {most} values{all_}", f"{size} values"
                raise self.wrong(_line(event), what, expected, found, "write the values out")
        return node

    def scalar(self, event: yaml.ScalarEvent) -> bool | int | float | str | None:
        text: str = event.value
        self.allow_tag(event, "str")
        if event.tag is not None or not event.implicit[0]:
            return text
        if text in _CONSTANTS:
            return _CONSTANTS[text]
        if text[0] not in "-+.0123456789":
            if text.lower() in _DISPUTED_WORDS:
                raise self.disputed(event, "true or false")
            return text
        if _INTEGER.fullmatch(text) and len(text) <= _DIGITS:
            return int(text, 16 if text.startswith("0x") else 10)
        if _FLOAT.fullmatch(text) and not math.isinf(float(text)):
            return float(text)
        if _INTEGER.fullmatch(text) or _FLOAT.fullmatch(text):
            found, remedy = _short(self.key + text), "write a smaller number"
            expected = "a number that fits, or .inf"
            raise self.wrong(_line(event), "the number is too large", expected, found, remedy)
        if _DISPUTED_NUMBER.fullmatch(text):
            raise self.disputed(event, "a plain decimal number")
        return text

    def disputed(self, event: yaml.ScalarEvent, instead: str) -> FormatError | ConfigError:
        what = f"readers of YAML do not agree on what {_short(event.value)} means"
        expected, found = f"{instead}, or text in quotes", _short(self.key + event.value)
        remedy = f"write {instead}, or quote it if it is meant as text"
        return self.wrong(_line(event), what, expected, found, remedy)

    def allow_tag(self, event: _TaggedEvent, name: str) -> None:
        tag = event.tag
        if tag is not None and tag not in ("!", f"tag:yaml.org,2002:{name}"):
            found, remedy = f"the tag {_short(tag)}", "remove the tag"
            raise self.wrong(_line(event), "the value has a tag", "no tag", found, remedy)

    def wrong(
        self, line: int, what: str, expected: str, found: str, remedy: str
    ) -> FormatError | ConfigError:
        return self.error(what, expected, found, remedy, where=f"{self.file}:{line}")

    def syntax_error(self, error: Exception) -> FormatError | ConfigError:
        where, found = f"{self.file}:1", str(error)
        if isinstance(error, yaml.MarkedYAMLError):
            mark = error.problem_mark or error.context_mark
            if mark is not None:
                where = f"{self.file}:{mark.line + 1}:{mark.column + 1}"
            found = ", ".join(part for part in (error.problem, error.context) if part)
        graph = self.error is FormatError
        expected = "a list of entries in YAML" if graph else "lines of the form `key: value`"
        what, remedy = "the text is not YAML", "mend the text at this line and column"
        return self.error(what, expected, found, remedy, where=where)


def _line(event: yaml.Event) -> int:
    assert event.start_mark is not None
    return event.start_mark.line + 1


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:60]}..."
