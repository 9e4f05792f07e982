"""The text format of protocol buffers, read into plain messages that remember their lines.

Nothing is known here of what a field means: see `schema`. The text may come from anywhere, so it is
read without recursion, and nesting and the length of numbers are limited.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from purine.errors import FormatError

__all__ = ["Entry", "Message", "Token", "parse"]

_DEPTH = 32  # levels of nesting
_DIGITS = 400  # of one number

_TOKEN = re.compile(
    r"""
    (?P<space>[ \t\r\f\v]+|\#[^\n]*)
  | (?P<newline>\n)
  | (?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
  | (?P<number>[-+]?(?:0[xX][0-9a-fA-F]+|(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?[fF]?)(?![\w.]))
  | (?P<word>-?[A-Za-z_][A-Za-z0-9_]*)
  | (?P<mark>[{}<>\[\]:;,])
    """,
    re.VERBOSE | re.ASCII,
)
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{1,2}|[0-7]{1,3}|.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_CLOSING = {"{": "}", "<": ">"}


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of the text: `form` is mark or end, or for a value string, number or word."""

    form: str
    text: str
    line: int

    def __str__(self) -> str:
        return "the end of the text" if self.form == "end" else repr(self.text)


@dataclass(slots=True)
class Message:
    """Fields in the order of the text; a field may occur any number of times."""

    line: int
    entries: list[Entry] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Entry:
    """One field of a message, and the line that holds it."""

    name: str
    value: Token | Message
    line: int


Open: TypeAlias = tuple[Message, str, int]


def parse(text: str, *, file: str = "<text>") -> Message:
    """The message that a text holds; a FormatError with `file:line` where it holds none.

    >>> net = parse('name: "LeNet"  layer { top: "a" top: "b" }')
    >>> [(entry.name, entry.line) for entry in net.entries]
    [('name', 1), ('layer', 1)]
    """
    tokens = _Tokens(text, file)
    root = Message(1)
    stack: list[Open] = [(root, "", 1)]
    while True:
        message, closing, opened = stack[-1]
        token = tokens.take()
        if token.form == "end":
            if closing:
                wanted = f"{closing!r} for what line {opened} opens"
                raise tokens.wrong(token, wanted, f"add the {closing!r}")
            return root
        if closing and token.text == closing and token.form == "mark":
            stack.pop()
            tokens.skip(";", ",")
        elif token.form == "word" and not token.text.startswith("-"):
            opening = _entry(tokens, message, token)
            if opening is not None:
                stack.append(opening)
                if len(stack) > _DEPTH:
                    wanted = f"at most {_DEPTH} levels of messages"
                    raise tokens.wrong(token, wanted, "flatten the text")
        else:
            wanted = f"the name of a field or {closing!r}" if closing else "the name of a field"
            raise tokens.wrong(token, wanted, "correct the line")


def _entry(tokens: _Tokens, message: Message, name: Token) -> Open | None:
    """Read a field; return the message that it opens, if it does."""
    colon = tokens.skip(":")
    token = tokens.take()
    if token.form == "mark" and token.text in _CLOSING:
        inner = Message(name.line)
        message.entries.append(Entry(name.text, inner, name.line))
        return inner, _CLOSING[token.text], token.line
    if not colon:
        raise tokens.wrong(token, f"':' or '{{' after {name.text!r}", "add a colon")
    if token.form == "mark" and token.text == "[":
        while not tokens.skip("]"):
            message.entries.append(Entry(name.text, tokens.scalar(tokens.take()), token.line))
            if not tokens.skip(",") and not tokens.next_is("]"):
                raise tokens.wrong(tokens.take(), "',' or ']'", "correct the list")
    else:
        message.entries.append(Entry(name.text, tokens.scalar(token), name.line))
    tokens.skip(";", ",")
    return None


class _Tokens:
    """The tokens of a text, one ahead."""

    def __init__(self, text: str, file: str) -> None:
        self.file = file
        self._tokens = self._scan(text)
        self._ahead = next(self._tokens)

    def take(self) -> Token:
        token = self._ahead
        if token.form != "end":
            self._ahead = next(self._tokens)
        return token

    def next_is(self, mark: str) -> bool:
        return self._ahead.form == "mark" and self._ahead.text == mark

    def skip(self, *marks: str) -> bool:
        """Take the next token if it is one of the marks."""
        skipped = any(map(self.next_is, marks))
        if skipped:
            self.take()
        return skipped

    def scalar(self, token: Token) -> Token:
        """The value that a token begins: strings in a row are one, without their quotes."""
        if token.form not in ("string", "number", "word"):
            raise self.wrong(token, "a value", "write a number, a name or a text in quotes")
        if token.form != "string":
            return token
        text = self._unquoted(token)
        while self._ahead.form == "string":
            text += self._unquoted(self.take())
        return replace(token, text=text)

    def wrong(self, token: Token, expected: str, remedy: str) -> FormatError:
        what, where = "the text cannot be read", f"{self.file}:{token.line}"
        return FormatError(what, where=where, expected=expected, found=str(token), remedy=remedy)

    def _scan(self, text: str) -> Iterator[Token]:
        position, line = 0, 1
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None:
                rest = text[position : position + 20].splitlines()[0] or "?"
                quote = text[position] in "\"'"
                expected = "a closing quote on the same line" if quote else "a field or a value"
                raise self.wrong(Token("other", rest, line), expected, "correct the line")
            form = match.lastgroup
            assert form is not None
            if form == "number" and len(match[0]) > _DIGITS:
                short = Token(form, match[0][:20] + "...", line)
                raise self.wrong(short, f"at most {_DIGITS} digits", "write a shorter number")
            if form == "newline":
                line += 1
            elif form != "space":
                yield Token(form, match[0], line)
            position = match.end()
        yield Token("end", "", line)

    def _unquoted(self, token: Token) -> str:
        def replacement(match: re.Match[str]) -> str:
            code = match[1]
            if code[0] == "x" and len(code) > 1:
                return chr(int(code[1:], 16))
            if code[0] in "01234567":
                return chr(int(code, 8))
            if code not in _ESCAPES and code not in "\\\"'?":
                raise self.wrong(token, "an escape such as \\n", f"change \\{code}")
            return _ESCAPES.get(code, code)

        return _ESCAPE.sub(replacement, token.text[1:-1])
