"""Colours of the page: texts and marks can be told from what they are on, in light and dark."""

from __future__ import annotations

import re

import pytest

from purine.viewer.bundle import static_text
from purine.viewer.roles import ROLES

TEXT, MARK = 4.5, 3.0
"""The least contrast of texts and of marks, as the Web Content Accessibility Guidelines have it."""
BARS = (
    *ROLES,
    "busy",
    "transfers",
    "peers",
    *(f"wait-{s}" for s in ("data", "transfers", "peers")),
)
BOXES = ("forward", "backward", "update", "recompute", "communication", "data", "clock")


def colours_of(file: str, dark: bool) -> dict[str, str]:
    """The custom properties of a style sheet by name; dark ones replace light ones."""
    light, _, darker = static_text(file).partition("@media screen and (prefers-color-scheme: dark)")
    found = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", light))
    return found | (dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", darker)) if dark else {})


def contrast(one: str, other: str) -> float:
    """The contrast of two colours, from 1 to 21."""
    lights = []
    for colour in (one, other):
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        lights.append(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2])
    return (max(lights) + 0.05) / (min(lights) + 0.05)


@pytest.mark.parametrize("dark", [False, True])
def test_the_page_can_be_read(dark: bool) -> None:
    of = colours_of("page.css", dark)
    for ground in ("ground", "panel"):
        for text in ("text", "quiet", "link"):
            assert contrast(of[text], of[ground]) >= TEXT, (text, ground)
    for bar in BARS:
        assert contrast(of[bar], of["ground"]) >= MARK, bar
        assert contrast(of["ink"], of[bar]) >= TEXT, bar
    for line in (f"c{number}" for number in range(8)):
        assert contrast(of[line], of["ground"]) >= MARK, line


@pytest.mark.parametrize("dark", [False, True])
def test_the_boxes_of_a_graph_can_be_read(dark: bool) -> None:
    of = colours_of("graph.css", dark)
    for box in BOXES:
        for text in ("ink", "faint"):
            assert contrast(of[f"pg-{text}"], of[f"pg-{box}"]) >= TEXT, (text, box)
        assert contrast(of[f"pg-{box}-edge"], of["pg-paper"]) >= MARK, box
    for ground in ("paper", "panel", "blob"):
        assert contrast(of["pg-faint"], of[f"pg-{ground}"]) >= TEXT, ground
        assert contrast(of["pg-link"], of[f"pg-{ground}"]) >= TEXT, ground
