"""Damaged texts: some no longer parse, others do and say something else."""

from __future__ import annotations

import random
import re
from functools import cache
from pathlib import Path

__all__ = ["SAMPLES", "mutated", "samples"]

SAMPLES = Path(__file__).parent / "caffe_samples"

_WORD = re.compile(r"[A-Za-z_]+|-?[0-9.]+(?:e-?[0-9]+)?|\"[^\"\n]*\"|[{}:]")
_FIELD = re.compile(r"(\s*[a-z_]+): ([^{\n]+)")
_WILD = ["0", "-1", "7", "1e30", "nan", "4294967295", '""', "{", "}", ":", "TEST", '"data"', "[1]"]
_VALUES = ["0", "-1", "1", "2", "3", "7", "100", "0.5", "-1e30", "4294967295", "2147483647", "nan"]


@cache
def samples() -> tuple[str, ...]:
    """The nets, then the solvers."""
    names = sorted(SAMPLES.glob("*.prototxt"), key=lambda path: ("solver" in path.name, path.name))
    return tuple(path.read_text(encoding="utf-8") for path in names)


def mutated(text: str, seed: int) -> str:
    """The text with one to three changes that `seed` chooses, which mostly keep its form."""
    draw = random.Random(seed)
    change = _changed_field if draw.random() < 0.7 else _changed_text
    for _ in range(draw.randint(1, 3)):
        text = change(text, draw)
    return text


def _changed_field(text: str, draw: random.Random) -> str:
    """One `field: value` lost, doubled, or with a value from elsewhere."""
    lines = text.split("\n")
    places = [at for at, line in enumerate(lines) if _FIELD.fullmatch(line)]
    if not places:
        return _changed_text(text, draw)
    at, other = draw.choice(places), draw.choice(places)
    change = draw.randrange(6)
    if change == 0:
        del lines[at]
    elif change == 1:
        lines.insert(at, lines[at])
    elif change == 2:
        lines.insert(at, lines[other])
    else:
        value = lines[other].partition(": ")[2] if change == 3 else draw.choice(_VALUES)
        lines[at] = f"{lines[at].partition(':')[0]}: {value}"
    return "\n".join(lines)


def _changed_text(text: str, draw: random.Random) -> str:
    """Lines lost, doubled or exchanged, or a word replaced by any other."""
    lines = text.split("\n")
    at, other = draw.randrange(len(lines)), draw.randrange(len(lines))
    change = draw.randrange(5)
    if change == 0:
        del lines[at]
    elif change == 1:
        lines.insert(at, lines[other])
    elif change == 2:
        lines[at], lines[other] = lines[other], lines[at]
    else:
        words = list(_WORD.finditer(text))
        word, source = draw.choice(words), draw.choice(words)
        new = source[0] if change == 3 else draw.choice(_WILD)
        return text[: word.start()] + new + text[word.end() :]
    return "\n".join(lines)
