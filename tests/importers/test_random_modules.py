"""A slice of the random campaign; `scripts/random_modules.py` runs as many modules as one likes."""

from __future__ import annotations

import pytest

from tests.importers.random_campaign import SCHEMES, compare
from tests.importers.random_modules import Draft, draw, load, shrink

SEEDS = range(24)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_module_has_the_numbers_of_pytorch_or_is_refused(seed: int) -> None:
    draft = draw(seed)
    scheme = list(SCHEMES)[seed % len(SCHEMES)]
    bugs = {way: found for way, found in compare(draft, [scheme]).items() if found.is_bug}
    assert not bugs, f"{draft.source()}\n{bugs}"


def test_a_module_is_a_function_of_its_seed() -> None:
    assert draw(3) == draw(3)
    assert draw(3) != draw(4)


def test_a_source_runs_by_itself() -> None:
    made = load(draw(5).source())
    assert sum(p.numel() for p in made.net.parameters()) > 0


def test_what_fails_is_shrunk() -> None:
    def has_head(draft: Draft) -> bool:
        return any("self.head(x)" in block.forward for block in draft.blocks)

    draft = next(one for one in map(draw, range(10)) if len(one.blocks) > 3)
    small = shrink(draft, has_head)
    assert has_head(small)
    assert len(small.blocks) < len(draft.blocks)
