"""Every change of the whole process is in one table, and can be declined by its name."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import purine as pu
from purine.errors import ConfigError
from purine.machine import heap, settings
from purine.machine.effects import EFFECTS, applies, effects_table
from purine.machine.threads import set_kernel_threads

PACKAGE = Path(pu.__file__).parent
APPLIED = re.compile(r'applies\("([^"]+)"\)|"([^"]+)" not in unwanted')
CHANGES = re.compile(
    r"mallopt\(|sched_setaffinity\(|set_num_threads|cudnn\.deterministic =|setAllocatorSettings"
    r"|os\.environ\.setdefault|os\.environ\[.*\] =|sys\.excepthook ="
)


def step(device: str = "cpu:0") -> pu.Graph:
    data = pu.data.fashion_mini()
    net = pu.data.prepare(pu.zoo.mlp(batch=4), data.train)
    return pu.to_device(pu.solvers.sgd(pu.backward(net), lr=0.1), device)


def after_import(code: str, **environment: str) -> str:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("GOMP", "THP"))}
    done = subprocess.run(
        [sys.executable, "-c", f"import os, sys, purine; print({code})"],
        env={**kept, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_the_table_is_what_the_modules_ask_for() -> None:
    asked = {
        name
        for path in PACKAGE.rglob("*.py")
        for match in APPLIED.findall(path.read_text())
        for name in match
        if name and path.name != "effects.py"
    }
    assert asked == {effect.name for effect in EFFECTS}
    rows = effects_table().splitlines()
    assert len(rows) == len(EFFECTS) + 2
    assert all(row.count(" | ") == 5 for row in rows)


def test_only_the_machine_package_changes_the_process() -> None:
    outside = [
        path.relative_to(PACKAGE)
        for path in PACKAGE.rglob("*.py")
        if path.parent.name != "machine" and CHANGES.search(path.read_text())
    ]
    assert outside == []


def test_an_unknown_name_is_an_error_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PURINE_DECLINE", "heap,spinn")
    with pytest.raises(ConfigError, match="PURINE_DECLINE: there is no effect 'spinn'") as caught:
        pu.Run(step(), data=pu.data.fashion_mini())
    assert caught.value.remedy == "did you mean 'spin'?"


def test_names_are_separated_by_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PURINE_DECLINE", " heap, cores,")
    assert (applies("heap"), applies("cores"), applies("spin")) == (False, False, True)


@pytest.mark.multiprocess
def test_effects_of_the_import_can_be_declined() -> None:
    code = "os.environ.get('GOMP_SPINCOUNT'), os.environ.get('THP_MEM_ALLOC_ENABLE')"
    assert after_import(code) == "4000 1"
    assert after_import(code, PURINE_DECLINE="spin,huge-pages") == "None None"


def test_a_declined_heap_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> bool:
        raise AssertionError

    monkeypatch.setattr(heap, "_has_huge_pages", refused)
    monkeypatch.setenv("PURINE_DECLINE", "heap")
    with pu.Run(step(), data=pu.data.fashion_mini(), threads=1) as run:
        next(run.steps(1))


def in_a_thread(work: Callable[[], int]) -> int:
    numbers: list[int] = []
    thread = threading.Thread(target=lambda: numbers.append(work()))
    thread.start()
    thread.join()
    return numbers[0]


def lane(count: int) -> int:
    set_kernel_threads(count)
    return torch.get_num_threads()


def test_the_threads_of_a_lane_are_not_the_default_of_other_threads() -> None:
    before = in_a_thread(torch.get_num_threads)
    assert in_a_thread(lambda: lane(before + 3)) == before + 3
    assert in_a_thread(torch.get_num_threads) == before


def test_declined_kernel_threads_are_those_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PURINE_DECLINE", "kernel-threads")
    before = in_a_thread(torch.get_num_threads)
    assert in_a_thread(lambda: lane(before + 3)) == before


def test_a_declined_cache_is_that_of_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PURINE_DECLINE", "compile-cache")
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    settings.use_compile_cache()
    assert "TRITON_CACHE_DIR" not in os.environ


def test_tf32_needs_the_settings_of_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setenv("PURINE_DECLINE", "gpu-math")
    with pytest.raises(ConfigError, match="tf32 is asked for, and effect 'gpu-math' is declined"):
        pu.Run(step("cuda:0"), data=pu.data.fashion_mini(), tf32=True)
