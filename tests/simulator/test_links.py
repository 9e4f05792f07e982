"""The link model against what is known of shared links, and against SimGrid where it is there."""

from __future__ import annotations

import importlib.util
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARK = Path(__file__).parent.parent.parent / "benchmarks" / "links.py"


@pytest.fixture
def links(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(sys, "path", [*sys.path])
    return runpy.run_path(str(BENCHMARK))


def test_ends_of_flows_that_are_known(links: dict[str, Any]) -> None:
    """Bytes over rates, by hand."""
    ends = {case.name: links["ours"](case) for case in links["cases"](0)}
    assert ends["one flow"] == [pytest.approx(1e6 / 1.25e8 + 5e-5)]
    assert ends["two flows share a link"] == pytest.approx([0.01605, 0.03205])
    assert ends["a parking lot"] == pytest.approx([0.032] * 5)
    assert max(ends["one begins later"]) == pytest.approx(6e6 / 1.25e8)
    assert max(ends["6 hosts at a switch, to one"]) >= 5e6 / 1.25e8


def test_no_link_carries_more_than_it_can(links: dict[str, Any]) -> None:
    for case in links["cases"](10):
        last = max(links["ours"](case)) - case.latency
        for name, rate in case.rates.items():
            own = [flow for flow in case.flows if name in flow.links]
            first = min((flow.start for flow in own), default=last)
            assert sum(flow.size for flow in own) <= rate * (last - first) * (1 + 1e-9)


@pytest.mark.skipif(importlib.util.find_spec("simgrid") is None, reason="needs simgrid")
def test_simgrid_agrees(links: dict[str, Any]) -> None:
    every = [case for case in links["cases"](20) if all(f.size % 1 == 0 for f in case.flows)]
    for case, own, other in zip(
        every, map(links["ours"], every), links["theirs"](every), strict=True
    ):
        assert own == pytest.approx(other, rel=1e-9), case.name
