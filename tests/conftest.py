"""Settings of all tests."""

from __future__ import annotations

import atexit
import gc
import sys
import typing
from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("purine", deadline=None)  # a busy machine is no mistake of the code
settings.load_profile("purine")

gc.set_threshold(50_000, 10, 10)  # rarely: looking for cycles took a seventh of the time

SLOW = (
    "parallel/test_schemes.py",
    "cli/test_launch.py",
    "compile",
    "runtime/test_hosts.py",
    "optimize/test_fuse.py",
    "importers",
    "parallel/test_random_schemes.py",
    "cli/test_train.py",
    "test_benchmarks.py",
    "runtime/test_run.py",
    "transports/test_mpi.py",
    "parallel/test_whole_batch.py",
    "parallel/test_shard.py",
    "runtime/test_races.py",
    "cli",
    "lowering/test_segments.py",
    "analysis/test_memory.py",
    "transports/test_transports.py",
    "kinds/test_add_at.py",
    "parallel/serve",
    "parallel/test_batch_norm.py",
    "parallel/test_pipeline.py",
    "optimize/test_mixed.py",
    "job/test_search.py",
    "viewer",
    "runtime/test_shares.py",
    "transports/test_pulse.py",
    "parallel/test_replicate.py",
    "runtime/test_checkpoint.py",
    "runtime/test_checkpoint_hosts.py",
    "runtime/test_gpu_hosts.py",
    "runtime/test_workers.py",
    "solvers/test_solvers.py",
    "wrong_inputs",
    "zoo",
    "parallel/test_accumulate.py",
    "parallel/test_delay.py",
    "parallel/test_hybrid.py",
    "parallel/test_cut.py",
    "parallel/test_across.py",
    "parallel/test_compress.py",
    "parallel/test_random_nets.py",
    "lowering/test_parcels.py",
    "dispatch/test_host_core.py",
    "machine/test_heap.py",
    "data/test_convert.py",
    "gpu",
    "kernels",
    "exporters",
    "optimize/test_join.py",
    "optimize/test_recompute.py",
    "test_docs.py",
    "test_examples.py",
    "test_tutorial.py",
    "trace",
)
"""Folders and files of tests that `make test-quick` leaves out, those that take longest first."""


def pytest_configure(config: pytest.Config) -> None:
    config.option.loadscopereorder = False  # workers take files in the order of below


def pytest_collection_finish() -> None:
    """Let the collector of garbage not look at all that was imported, again and again."""
    gc.collect()
    gc.freeze()
    spare_exports()


def pytest_sessionfinish() -> None:
    """Leave nothing to the five full collections with which pytest ends."""
    gc.freeze()
    atexit.register(gc.unfreeze)  # modules look at exit for what they have leaked


def spare_exports() -> None:
    """Do once what every `torch.export` repeats, with the same outcome: two fifths of its time.

    For each namespace it looks up all operators, and for each operator it makes types that
    annotate.
    """
    exports, operators = sys.modules.get("torch._export.utils"), sys.modules.get("torch._ops")
    if exports is not None and operators is not None:
        exports._materialize_cpp_cia_ops = cache(exports._materialize_cpp_cia_ops)
        operators.Callable = typing.Callable  # which keeps the types that it has made


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark slow tests; workers begin with the longest, so that they end at about the same time."""
    tests = Path(__file__).parent
    places = {tests / name: place for place, name in enumerate(SLOW)}
    place_of: dict[pytest.Item, int] = {}
    for item in items:
        above = (item.path, *item.path.parents)
        place_of[item] = min(places.get(path, len(SLOW)) for path in above)
        if place_of[item] < len(SLOW):
            item.add_marker(pytest.mark.slow)
    if hasattr(config, "workerinput"):
        items.sort(key=place_of.__getitem__)
