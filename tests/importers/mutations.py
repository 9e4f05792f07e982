"""Damaged texts: some no longer parse, others do and say something else."""

from __future__ import annotations

import random
import re
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["SAMPLES", "SIZES", "mutated", "nets", "solvers"]

SAMPLES = Path(__file__).parent / "caffe_samples"

SIZES: dict[str, dict[str, Any]] = {
    "alexnet_train_val": {"image": (3, 72, 72)},
    "caffenet_v1_train_val": {"image": (3, 72, 72)},
    "char_lstm": {"shapes": {"cont": (4,), "input": (4,), "target": (4,)}},
    "cifar10_full_train_test": {"image": (3, 32, 32), "batch": 4},
    "densenet_train_val": {"image": (3, 40, 40)},
    "face_prelu_train": {},
    "fcn_train": {},
    "googlenet_train_val": {"image": (3, 70, 70)},
    "lenet_train_test": {"image": (1, 28, 28), "batch": 4},
    "mnist_autoencoder": {"image": (1, 28, 28)},
    "mobilenet_deploy": {},
    "nin_imagenet_v1_train_val": {"image": (3, 70, 70)},
    "odds_and_ends": {},
    "resnet50_deploy": {},
    "siamese_train_test": {"image": (2, 28, 28)},
    "squeezenet_train_val": {"image": (3, 70, 70)},
    "vgg16_v1_train_val": {"image": (3, 36, 36)},
}
"""What each net leaves to its source."""

_WORD = re.compile(r"[A-Za-z_]+|-?[0-9.]+(?:e-?[0-9]+)?|\"[^\"\n]*\"|[{}:]")
_FIELD = re.compile(r"(\s*[a-z_]+): ([^{\n]+)")
_WILD = ["0", "-1", "7", "1e30", "nan", "4294967295", '""', "{", "}", ":", "TEST", '"data"', "[1]"]
_VALUES = ["0", "-1", "1", "2", "3", "7", "100", "0.5", "-1e30", "4294967295", "2147483647", "nan"]


@cache
def nets() -> tuple[tuple[str, dict[str, Any]], ...]:
    """The texts of all nets among the samples, each with its sizes."""
    return tuple((_text(name), sizes) for name, sizes in SIZES.items())


@cache
def solvers() -> tuple[str, ...]:
    """The texts of all solvers among the samples."""
    return tuple(_text(path.stem) for path in sorted(SAMPLES.glob("*_solver.prototxt")))


def _text(name: str) -> str:
    return (SAMPLES / f"{name}.prototxt").read_text(encoding="utf-8")


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
