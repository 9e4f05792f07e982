"""What the hosts of a run compare before it starts: versions, settings and data.

Hosts that differ in these would train something else, or wait for each other. Patch releases of
Python and builds of torch may differ, since machines may differ.
"""

from __future__ import annotations

import sys

import torch

from purine.data import DataSet
from purine.data.source import identity_of
from purine.runtime.checkpoint import purine_version

__all__ = ["facts_of"]


def facts_of(data: DataSet | None, *, seed: int, prefetch: int) -> dict[str, str]:
    """The facts that must be the same on all hosts of a run, in the order of comparison.

    >>> list(facts_of(None, seed=0, prefetch=2))
    ['version of purine', 'version of torch', 'version of Python', 'seed', 'prefetch']
    """
    major, minor, *_ = sys.version_info
    facts = {
        "version of purine": purine_version(),
        "version of torch": str(torch.__version__).partition("+")[0],
        "version of Python": f"{major}.{minor}",
        "seed": str(seed),
        "prefetch": str(prefetch),
    }
    if data is not None:
        facts["data set"] = data.name
        facts["training samples"] = identity_of(data.train)
        facts["test samples"] = "none" if data.test is None else identity_of(data.test)
    return facts
