"""Settings of all tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("purine", deadline=None)  # a busy machine is no mistake of the code
settings.load_profile("purine")

SLOW = (
    "cli",
    "compile",
    "gpu",
    "importers",
    "kernels",
    "kinds/test_add_at.py",
    "lowering/test_segments.py",
    "optimize/test_fuse.py",
    "optimize/test_mixed.py",
    "parallel/test_batch_norm.py",
    "parallel/test_pipeline.py",
    "parallel/test_random_nets.py",
    "parallel/test_random_schemes.py",
    "parallel/test_replicate.py",
    "parallel/test_schemes.py",
    "parallel/test_shard.py",
    "parallel/test_whole_batch.py",
    "runtime/test_checkpoint.py",
    "runtime/test_races.py",
    "runtime/test_run.py",
    "test_benchmarks.py",
    "test_docs.py",
    "test_examples.py",
    "test_tutorial.py",
    "trace",
    "wrong_inputs",
    "zoo",
)
"""Folders and files of tests that `make test-quick` leaves out."""


def pytest_configure(config: pytest.Config) -> None:
    config.option.loadscopereorder = False  # workers take files in the order of below


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark slow tests; workers begin with them, so that they end at about the same time."""
    tests = Path(__file__).parent
    slow = {tests / name for name in SLOW}
    for item in items:
        if not slow.isdisjoint((item.path, *item.path.parents)):
            item.add_marker(pytest.mark.slow)
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: item.get_closest_marker("slow") is None)
