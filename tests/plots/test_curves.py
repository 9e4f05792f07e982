"""Curves as SVG and in a terminal: axes, legibility, and names that mean harm."""

from __future__ import annotations

import math
import random
import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from purine.plots.curves import Curve, Panel, Plot, smoothed, thinned
from purine.plots.matrix import confusion_picture
from purine.plots.picture import picture
from purine.plots.svg import SERIES
from purine.plots.terminal import drawn
from purine.plots.ticks import axis

SVG = "{http://www.w3.org/2000/svg}"


def a_plot(*labels: str, count: int = 300, log: bool = False) -> Plot:
    draw = random.Random(0)
    curves = []
    for rate, label in enumerate(labels, 2):
        points = [(x, math.exp(-x * rate / count) + draw.random() / 5) for x in range(count)]
        curves.append(Curve(label, tuple(points), ((count / 2, 0.5), (count - 1, 0.2))))
    return Plot("Training", "iterations", (Panel("loss", tuple(curves), log),))


@given(
    st.lists(st.floats(-1e12, 1e12, allow_subnormal=False), min_size=1, max_size=20),
    st.integers(2, 12),
)
def test_ticks_are_round_few_and_inside(values: list[float], most: int) -> None:
    made = axis(values, most=most)
    assert made.low < made.high
    assert len(made.ticks) <= most
    assert all(-1e-9 <= made.place(tick) <= 1 + 1e-9 for tick in made.ticks)
    for tick in made.ticks:
        digits = f"{abs(tick - 0.0):.12e}".partition("e")[0].rstrip("0").replace(".", "")
        assert len(digits) <= 13
    assert len(set(made.labels)) == len(made.ticks)


def test_log_axes() -> None:
    assert axis([0.001, 30.0], most=5, log=True).ticks == (0.001, 0.01, 0.1, 1.0, 10.0)
    assert axis([0.9, 5.5], most=5, log=True).ticks == (1.0, 2.0, 5.0)
    assert len(axis([1e-30, 1e30], most=5, log=True).ticks) <= 5
    assert axis([3.0], most=5, log=True).place(3.0) == pytest.approx(0.5)


def test_means_follow_the_values_without_a_lag() -> None:
    line = [(x, 2.0 * x) for x in range(100)]
    assert smoothed(line, 9)[:90] == tuple(line[:90])
    noise = [(x, float(x % 2)) for x in range(100)]
    assert all(abs(y - 0.5) < 0.06 for _, y in smoothed(noise, 21)[20:])
    assert smoothed([], None) == ()
    assert smoothed(line, 1) == tuple(line)


def test_thinned_lines_keep_their_peaks() -> None:
    points = [(x, 5.0 if x == 77_777 else 1.0) for x in range(100_000)]
    kept = thinned(points, 1000)
    assert len(kept) <= 1001
    assert (77_777, 5.0) in kept
    assert len(picture(a_plot("a", count=100_000))) < 120_000


def test_a_picture_is_read_and_told_in_words() -> None:
    text = picture(a_plot("runs/a", "runs/b"))
    root = ElementTree.fromstring(text)
    assert root.get("role") == "img"
    assert root.find(f"{SVG}title").text == "Training"  # type: ignore[union-attr]
    told = root.find(f"{SVG}desc").text  # type: ignore[union-attr]
    assert told is not None
    assert "runs/a: loss 1." in told
    assert "0.2 in the last of 2 tests" in told
    assert "prefers-color-scheme:dark" in text
    classes = [item.get("class", "") for item in root.iter()]
    assert classes.count("raw s0") == classes.count("line s1") - 1 == 1  # one is in the legend
    assert sum("mark" in name for name in classes) == 4
    width, height = (float(root.get(name, "0")) for name in ("width", "height"))
    for x, y in re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", text):
        assert 0 <= float(x) <= width
        assert 0 <= float(y) <= height


def test_ten_runs_are_told_apart() -> None:
    root = ElementTree.fromstring(picture(a_plot(*(f"run{k}" for k in range(10)))))
    lines = {item.get("class") for item in root.iter() if "line" in item.get("class", "")}
    assert len(lines) == 10
    assert "line s0 d1" in lines


def test_colours_can_be_read_on_their_paper() -> None:
    def light(colour: str) -> float:
        parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return sum(a * b for a, b in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    for paper, mode in (("#ffffff", 0), ("#1d2127", 1)):
        for colours in SERIES:
            bright, dark = sorted((light(paper), light(colours[mode])), reverse=True)
            assert (bright + 0.05) / (dark + 0.05) >= 4.5, (colours[mode], paper)


@pytest.mark.parametrize("name", ["</desc><script>", 'a"b&c', "\x00\x1b[31m", "x" * 100_000])
def test_names_do_no_harm(name: str) -> None:
    root = ElementTree.fromstring(picture(a_plot(name)))
    assert not [item for item in root.iter() if item.tag.endswith("script")]


@pytest.mark.parametrize("width", [30, 80, 200])
@pytest.mark.parametrize("braille", [True, False])
def test_a_terminal_gets_lines_of_its_width(width: int, braille: bool) -> None:
    lines = drawn(a_plot("a", "b"), width=width, height=10, braille=braille)
    texts = ["".join(piece for piece, _ in line) for line in lines]
    assert max(map(len, texts)) <= width
    joined = "".join(texts)
    assert joined.isascii() is not braille
    assert ("●" if braille else "o") in joined
    assert {curve for line in lines for _, curve in line} == {None, 0, 1}


def test_one_point_and_a_level_line_are_drawn() -> None:
    for points in (((5.0, 0.3),), tuple((float(x), 2.0) for x in range(5))):
        plot = Plot("t", "iterations", (Panel("loss", (Curve("a", points),)),))
        assert "line s0" in picture(plot)
        assert any(curve == 0 for line in drawn(plot, width=40, height=5) for _, curve in line)


def test_confusions_of_many_classes_stay_small() -> None:
    counts = [[3 if row == column else 0 for column in range(300)] for row in range(300)]
    text = confusion_picture(counts, "a <title>", "all right")
    root = ElementTree.fromstring(text)
    assert root.find(f"{SVG}desc").text == "all right"  # type: ignore[union-attr]
    assert len(text) < 60_000  # squares without a sample are not drawn
    assert len([item for item in root.iter() if item.get("class") == "right"]) == 300
