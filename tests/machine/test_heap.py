"""Huge pages for large buffers, in a process of its own: the setting lasts as long as a process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_SCRIPT = """
import resource, purine, torch
from purine.machine.heap import tune_heap
net = purine.zoo.{net}
heap = tune_heap(purine.backward(net))
tuned = heap is not None and heap.mapped
if heap is not None:
    heap.settle()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    torch.ones(4 << 20)
print(tuned, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.multiprocess
def test_large_buffers_cost_few_page_faults() -> None:
    setting = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not setting.exists() or "[never]" in setting.read_text():
        pytest.skip("this system has no huge pages")
    found = subprocess.run(
        [sys.executable, "-c", _SCRIPT.format(net="nin(batch=64)")],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert found[0] == "True"
    assert int(found[1]) < 10 * 4096 / 2, "16 MB have 4096 pages"


@pytest.mark.multiprocess
def test_a_setting_of_the_user_stays() -> None:
    script = "import os; os.environ['THP_MEM_ALLOC_ENABLE'] = '0'\n" + _SCRIPT.format(
        net="nin(batch=64)"
    )
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout.split()
    assert found[0] == "False"


@pytest.mark.multiprocess
def test_a_step_that_computes_little_with_each_byte_keeps_its_heap() -> None:
    found = subprocess.run(
        [sys.executable, "-c", _SCRIPT.format(net="resnet50(batch=8, width=16)")],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert found[0] == "False"
    assert int(found[1]) < 2 * 4096, "16 MB have 4096 pages, and only the first ones are fresh"
