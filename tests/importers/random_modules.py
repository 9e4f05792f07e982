"""Random PyTorch modules as source text, drawn from `random_grammar`.

A module is a pure function of its seed. It is text, so that one that fails can be pasted into an
issue. Sizes are not computed: every block is tried on an example as it is added, and is left out
where plain PyTorch refuses it.
"""

from __future__ import annotations

import linecache
import random
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from tests.importers.random_grammar import AIMS, RULES, STARTS, Aim, Rule

__all__ = ["Draft", "Loaded", "draw", "load", "shrink"]

_EXPRESSION = re.compile(r"\{([^{}]+)\}")
_CHOICE = re.compile(r"<([^<>]*\|[^<>]*)>")
_LONGEST = 6
_TRIES = 30
_LARGEST = 200  # numbers that a sample may have, so that steps are quick

_IMPORTS = """import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import nn"""


@dataclass(frozen=True, slots=True)
class Block:
    """Some lines of a module; a module without them may still be one."""

    forward: str
    init: str = ""
    helper: str = ""


@dataclass(frozen=True, slots=True)
class Draft:
    """A module before it is text."""

    seed: int
    sample: str
    blocks: tuple[Block, ...] = ()
    result: str = "x"
    targets: tuple[str, ...] = ()
    loss: str = "return y.sum()"

    def source(self) -> str:
        """Python text that makes `net`, `loss` and `data`, a function that draws samples."""
        init = [block.init for block in self.blocks if block.init]
        forward = [block.forward for block in self.blocks]
        methods = [
            _indented("def __init__(self):", "super().__init__()", *init),
            _indented("def forward(self, x):", *forward, f"return {self.result}"),
        ]
        names = ("y", "t", "u")[: 1 + len(self.targets)]
        return "\n\n\n".join(
            [
                _IMPORTS,
                *dict.fromkeys(block.helper.strip() for block in self.blocks if block.helper),
                _indented("class Net(nn.Module):", "\n\n".join(methods)),
                _indented(f"def loss({', '.join(names)}):", self.loss),
                _indented("def data(count, g):", *self._samples()),
                f"torch.manual_seed({self.seed})\nnet = Net().double()\n",
            ]
        )

    def _samples(self) -> list[str]:
        names = ["x", "t", "u"][: 1 + len(self.targets)]
        drawn = zip(names, (self.sample, *self.targets), strict=True)
        return [*(f"{name} = {text}" for name, text in drawn), f"return {', '.join(names)},"]


def _indented(head: str, *texts: str) -> str:
    lines = [line for text in texts for line in text.splitlines()]
    return "\n".join([head, *(f"    {line}" if line else line for line in lines)])


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a source defines."""

    net: nn.Module
    loss: Callable[..., Any]
    data: Callable[[int, torch.Generator], tuple[Tensor, ...]]


def load(source: str, name: str = "<random module>") -> Loaded:
    """Run a source. Messages can show its lines, by the name."""
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    space: dict[str, Any] = {"__name__": "random_module"}
    exec(compile(source, name, "exec"), space)
    return Loaded(space["net"], space["loss"], space["data"])


def draw(seed: int) -> Draft:
    """The module of a seed. It trains and tests in plain PyTorch, at two batch sizes."""
    rng = random.Random(f"modules {seed}")
    while True:
        made = _attempt(seed, rng)
        if made is not None:
            return made


def _attempt(seed: int, rng: random.Random) -> Draft | None:
    sample, start = rng.choice(STARTS)
    filled = _Filled(rng, (), 0)
    draft = Draft(seed, filled(sample))
    if start is not None:
        draft = replace(draft, blocks=(filled.block(start),))
    shape = _shape(draft)
    aim = rng.choices(AIMS, [aim.often for aim in AIMS])[0]
    length = rng.randint(1, _LONGEST)
    for place in range(_TRIES):
        if shape is None or len(draft.blocks) >= length:
            break
        draft, shape = _extended(draft, shape, rng, place)
    if shape is None:
        return None
    finished = _finished(draft, shape, aim, rng)
    return finished if finished is not None and _works(finished) else None


def _extended(
    draft: Draft, shape: tuple[int, ...], rng: random.Random, place: int
) -> tuple[Draft, tuple[int, ...]]:
    """The draft with one block more, if a random one fits."""
    rules = [rule for rule in RULES if str(len(shape)) in rule.ranks]
    rule = rng.choices(rules, [rule.often for rule in rules])[0]
    longer = replace(draft, blocks=(*draft.blocks, _Filled(rng, shape, place).block(rule)))
    after = _shape(longer)
    return (draft, shape) if after is None else (longer, after)


def _finished(draft: Draft, shape: tuple[int, ...], aim: Aim, rng: random.Random) -> Draft | None:
    """The draft with a head and a loss."""
    blocks = list(draft.blocks)
    if aim.rank == 2 and len(shape) > 2:
        pooled = rng.choice(("x = x.flatten(1)", "x = x.mean(tuple(range(2, x.dim())))"))
        blocks.append(Block(pooled))
        flat = _shape(replace(draft, blocks=tuple(blocks)))
        if flat is None:
            return None
        shape = flat
    if len(shape) != aim.rank:
        return None
    filled = _Filled(rng, shape, len(blocks))
    blocks.append(Block("x = self.head(x)", f"self.head = nn.Linear({shape[-1]}, 3)"))
    if aim.forward:
        blocks.append(Block(aim.forward))
    return replace(
        draft,
        blocks=tuple(blocks),
        result=aim.result,
        targets=tuple(filled(text) for text in aim.targets),
        loss=filled(aim.loss),
    )


@dataclass(slots=True)
class _Filled:
    """Fills in templates."""

    rng: random.Random
    shape: tuple[int, ...]
    place: int
    names: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        sizes = dict(zip("NCH", self.shape, strict=False))
        self.names = {
            **sizes,
            "D": self.shape[-1] if self.shape else 0,
            "i": self.place,
            "size": lambda: self.rng.choice((2, 3, 4, 6)),
            "div": lambda n: self.rng.choice([d for d in range(1, n + 1) if n % d == 0]),
        }

    def __call__(self, text: str) -> str:
        while (choice := _CHOICE.search(text)) is not None:
            chosen = self.rng.choice(choice[1].split("|"))
            text = text[: choice.start()] + chosen + text[choice.end() :]
        return _EXPRESSION.sub(lambda found: str(eval(found[1], self.names)), text)

    def block(self, rule: Rule) -> Block:
        forward = rule.forward if isinstance(rule.forward, str) else self.rng.choice(rule.forward)
        return Block(self(forward), self(rule.init), rule.helper)


def _shape(draft: Draft) -> tuple[int, ...] | None:
    """The shape of what the module gives for a batch of four, None where it gives nothing good."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = load(draft.source())
            (x,) = made.data(4, torch.Generator().manual_seed(0))
            y = made.net(x)
    except Exception:
        return None
    usable = y.dtype == torch.float64 and y.dim() in (2, 3, 4) and len(y) == 4 and y.numel() > 0
    return tuple(y.shape) if usable and y.numel() <= 4 * _LARGEST and y.isfinite().all() else None


def _works(draft: Draft) -> bool:
    """Whether plain PyTorch trains and tests the module, with numbers that are no extremes."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = load(draft.source())
            for count in (4, 16):
                x, *targets = made.data(count, torch.Generator().manual_seed(count))
                found = made.loss(made.net(x), *targets)
                loss = found["loss"] if isinstance(found, dict) else found
                loss.backward()
            made.net.eval()
            made.net(x)
    except Exception:
        return False
    gradients = [p.grad for p in made.net.parameters() if p.grad is not None]
    return bool(loss.isfinite()) and all(bool((g.abs() < 1e4).all()) for g in gradients)


def shrink(draft: Draft, fails: Callable[[Draft], bool]) -> Draft:
    """A shorter module that still fails: blocks are left out as long as it does."""
    shorter = next((one for one in _shorter(draft) if _works(one) and fails(one)), None)
    return draft if shorter is None else shrink(shorter, fails)


def _shorter(draft: Draft) -> Iterator[Draft]:
    blocks: Sequence[Block] = draft.blocks
    for place in range(len(blocks)):
        yield replace(draft, blocks=(*blocks[:place], *blocks[place + 1 :]))
