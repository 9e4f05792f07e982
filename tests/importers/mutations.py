"""Damaged texts: lines lost, doubled and exchanged, and words replaced by others."""

from __future__ import annotations

import random
import re
from functools import cache
from pathlib import Path

__all__ = ["SAMPLES", "mutated", "samples"]

SAMPLES = Path(__file__).parent / "caffe_samples"

_WORD = re.compile(r"[A-Za-z_]+|-?[0-9.]+(?:e-?[0-9]+)?|\"[^\"\n]*\"|[{}:]")
_WILD = ["0", "-1", "7", "1e30", "nan", "4294967295", '""', "{", "}", ":", "TEST", '"data"', "[1]"]


@cache
def samples() -> tuple[str, ...]:
    """The nets, then the solvers."""
    names = sorted(SAMPLES.glob("*.prototxt"), key=lambda path: ("solver" in path.name, path.name))
    return tuple(path.read_text(encoding="utf-8") for path in names)


def mutated(text: str, seed: int) -> str:
    """The text with one to four changes that `seed` chooses."""
    draw = random.Random(seed)
    for _ in range(draw.randint(1, 4)):
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
            if words:
                word, source = draw.choice(words), draw.choice(words)
                new = source[0] if change == 3 else draw.choice(_WILD)
                text = text[: word.start()] + new + text[word.end() :]
            continue
        text = "\n".join(lines)
    return text
