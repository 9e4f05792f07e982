"""The threads that kernels use: as many as a lane was given, and none left over on the host."""

from __future__ import annotations

import os
import threading

import pytest
import torch

from purine.machine.threads import release_host_pool, set_kernel_threads
from tests.forked import python


def tasks() -> int:
    return len(os.listdir("/proc/self/task"))


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="needs Linux")
def test_a_thread_keeps_its_number_whatever_others_set_later() -> None:
    found: dict[str, int] = {}
    first, second = threading.Event(), threading.Event()

    def single() -> None:
        set_kernel_threads(1)
        first.set()
        assert second.wait(30)
        found["single"] = torch.get_num_threads()

    def double() -> None:
        assert first.wait(30)
        set_kernel_threads(2)
        second.set()
        found["double"] = torch.get_num_threads()

    threads = [threading.Thread(target=work) for work in (single, double)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {"single": 1, "double": 2}


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="needs Linux")
def test_the_hosts_helpers_are_gone_after_release() -> None:
    if torch.get_num_threads() < 2:
        pytest.skip("one core has no helpers")
    torch.ones(10_000_000)
    before = tasks()
    assert release_host_pool()
    assert tasks() < before
    assert torch.ones(1_000_000).sum().item() == 1_000_000


@pytest.mark.multiprocess
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux")
def test_a_process_that_may_use_fewer_cores_by_now_has_fewer_threads() -> None:
    """Threads that outnumber the cores wait for each other: steps took thirty times as long."""
    script = """
import os
import torch
import purine as pu

torch.set_num_threads(8)
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
data = pu.data.fashion_mini()
net = pu.data.prepare(pu.zoo.mlp(batch=4), data.train)
with pu.Run(pu.solvers.sgd(pu.backward(net), lr=0.1), data=data) as run:
    next(run.steps(1))
    print(run._executor.threads)
"""
    found = python("-c", script)
    assert found.stdout.strip() == "1", found.stderr
