"""SVG as text: elements, escaping, and colours for light and for dark pages.

Colours are classes, so that one style sheet inside the picture has both variants.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape

__all__ = ["SERIES", "Svg", "number", "text_width"]

SERIES = (
    ("#0068b8", "#58a9f0"),
    ("#c8500a", "#ff9a57"),
    ("#0b7f5a", "#45cf9c"),
    ("#a2418e", "#ee9fdc"),
    ("#7a6400", "#d8bd45"),
    ("#5b50c4", "#aaa2ff"),
    ("#b3263c", "#ff8c98"),
    ("#4d6470", "#a9bfcb"),
)
"""Colours of series on light and on dark paper; all have a contrast of 4.5 or more with it."""
DASHES = ("", "7 3", "2 3", "9 3 2 3")
_PAPER, _INK, _FAINT, _LINES = (
    ("#ffffff", "#14171c"),
    ("#1d2127", "#e4e8ee"),
    ("#59626d", "#9ba6b3"),
    ("#dfe3e8", "#333a44"),
)
_CONTROL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Svg:
    """A picture under construction."""

    def __init__(self, width: float, height: float, title: str, description: str) -> None:
        self.width, self.height = width, height
        self._title, self._description = title, description
        self._body: list[str] = []
        self._styles: list[str] = []

    def add(self, tag: str, text: str | None = None, **attributes: object) -> None:
        """Add an element; `class_` and `stroke_width` stand for `class` and `stroke-width`."""
        words = [tag]
        for name, value in attributes.items():
            shown = number(value) if isinstance(value, float | int) else clean(str(value))
            words.append(f'{name.rstrip("_").replace("_", "-")}="{shown}"')
        end = "/>" if text is None else f">{clean(text)}</{tag}>"
        self._body.append(f"<{' '.join(words)}{end}")

    def style(self, rule: str) -> None:
        """Add a rule to the style sheet."""
        self._styles.append(rule)

    def text(self) -> str:
        """The whole picture."""
        width, height = number(self.width), number(self.height)
        return "\n".join(
            (
                f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
                f'viewBox="0 0 {width} {height}" role="img" aria-labelledby="title desc">',
                f'<title id="title">{clean(self._title)}</title>',
                f'<desc id="desc">{clean(self._description)}</desc>',
                f"<style>{''.join((*_common_styles(), *self._styles))}</style>",
                f'<rect class="paper" width="{width}" height="{height}"/>',
                *self._body,
                "</svg>\n",
            )
        )


def _common_styles() -> Iterable[str]:
    yield "text{font:12px system-ui,-apple-system,'Segoe UI',sans-serif}"
    yield ".bold{font-weight:600}.end{text-anchor:end}.middle{text-anchor:middle}"
    yield ".raw,.line,.grid{fill:none;stroke-linejoin:round}"
    yield ".line{stroke-width:1.8}.raw{stroke-width:1;opacity:.28}.grid{stroke-width:1}"
    yield ".mark{stroke-width:1.5}"
    for index, dash in enumerate(DASHES):
        if dash:
            yield f".d{index}{{stroke-dasharray:{dash}}}"
    yield _colours(0)
    yield f"@media (prefers-color-scheme:dark){{{_colours(1)}}}"


def _colours(mode: int) -> str:
    rules = [
        f".paper{{fill:{_PAPER[mode]}}}",
        f".ink{{fill:{_INK[mode]}}}",
        f".faint{{fill:{_FAINT[mode]}}}",
        f".grid{{stroke:{_LINES[mode]}}}",
        f".mark{{stroke:{_PAPER[mode]}}}",
    ]
    for index, colours in enumerate(SERIES):
        rules.append(f".s{index}{{stroke:{colours[mode]}}}.f{index}{{fill:{colours[mode]}}}")
    return "".join(rules)


def clean(text: str) -> str:
    """Text for XML, without the characters that XML cannot hold.

    >>> clean('<a & "b">\\x00')
    '&lt;a &amp; &quot;b&quot;&gt;\ufffd'
    """
    return escape(_CONTROL.sub("\ufffd", text))


def number(value: float) -> str:
    """A coordinate, to a hundredth.

    >>> number(3.0), number(2.34567)
    ('3', '2.35')
    """
    return f"{value:.2f}".rstrip("0").rstrip(".")


def text_width(text: str) -> float:
    """About how wide a text of 12 pixels is."""
    return sum(10.5 if ord(char) > 0x2E80 else 6.7 for char in text)
