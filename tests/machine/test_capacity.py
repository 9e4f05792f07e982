"""What memory there is: by the machine, and by the control groups of both versions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from purine.errors import ConfigError
from purine.job import make_plan, merge
from purine.job.placing import placement
from purine.machine.capacity import available_memory
from purine.registry.aten import device_of

GB = 1 << 30


def machine(root: Path, files: dict[str, object], *, groups: str = "") -> Path:
    """A machine with 64 GB available, and files under `sys/fs/cgroup`."""
    known = {
        "proc/meminfo": f"MemTotal: {128 << 20} kB\nMemAvailable:   {64 << 20} kB\n",
        "proc/self/cgroup": groups,
    }
    known |= {f"sys/fs/cgroup/{name}": f"{value}\n" for name, value in files.items()}
    for name, text in known.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def test_without_groups_it_is_what_the_system_says(tmp_path: Path) -> None:
    assert available_memory(root=machine(tmp_path, {})) == 64 * GB


@pytest.mark.parametrize("path", ["/", "/job/step"])
def test_the_limit_of_a_container(tmp_path: Path, path: str) -> None:
    """The mount is the container's own, whether it has a namespace of groups or not."""
    files = {"memory.max": 8 * GB, "memory.current": 3 * GB}
    root = machine(tmp_path, files, groups=f"0::{path}\n")
    assert available_memory(root=root) == 5 * GB


def test_the_tightest_of_all_groups_counts(tmp_path: Path) -> None:
    files: dict[str, object] = {
        "job/step/memory.max": "max",
        "job/step/memory.current": 1 * GB,
        "job/memory.max": 6 * GB,
        "job/memory.current": 4 * GB,
        "memory.max": 9 * GB,
        "memory.current": 5 * GB,
    }
    root = machine(tmp_path, files, groups="0::/job/step\n")
    assert available_memory(root=root) == 2 * GB


def test_pages_of_files_can_be_had_back(tmp_path: Path) -> None:
    files: dict[str, object] = {
        "memory.max": 8 * GB,
        "memory.current": 7 * GB,
        "memory.stat": f"anon {2 * GB}\ninactive_file {5 * GB}\nactive_file 0",
    }
    assert available_memory(root=machine(tmp_path, files, groups="0::/\n")) == 6 * GB


def test_groups_of_the_first_version(tmp_path: Path) -> None:
    files: dict[str, object] = {
        "memory/job/memory.limit_in_bytes": 4 * GB,
        "memory/job/memory.usage_in_bytes": 3 * GB,
        "memory/job/memory.stat": f"inactive_file 0\ntotal_inactive_file {1 * GB}",
        "memory/memory.limit_in_bytes": 9223372036854771712,
        "memory/memory.usage_in_bytes": 90 * GB,
    }
    groups = "9:cpu,cpuacct:/other\n4:memory:/job\n0::/\n"
    assert available_memory(root=machine(tmp_path, files, groups=groups)) == 2 * GB


def test_a_machine_with_both_versions(tmp_path: Path) -> None:
    files = {"unified/a/memory.max": 2 * GB, "unified/a/memory.current": 0}
    root = machine(tmp_path, files, groups="4:memory:/a\n0::/a\n")
    assert available_memory(root=root) == 2 * GB


def test_a_limit_beyond_the_machine_counts_as_none(tmp_path: Path) -> None:
    files = {"memory.max": 900 * GB, "memory.current": 0}
    assert available_memory(root=machine(tmp_path, files, groups="0::/\n")) == 64 * GB


def test_nothing_is_left_where_more_is_used_than_allowed(tmp_path: Path) -> None:
    files = {"memory.max": 1 * GB, "memory.current": 2 * GB}
    assert available_memory(root=machine(tmp_path, files, groups="0::/\n")) == 0


def test_this_machine() -> None:
    assert 1 << 20 < available_memory("cpu:3") < 1 << 50


def test_a_system_that_does_not_say(tmp_path: Path) -> None:
    assert available_memory(root=tmp_path) > 1 << 20


@pytest.mark.parametrize("device", ["cuda:99", "cuda:x", "tpu:0"])
def test_a_device_that_is_not_there(device: str) -> None:
    with pytest.raises(ConfigError, match=f"device {device} is not there"):
        available_memory(device)


def test_a_gpu_says_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda number: ((number + 1) * GB, 80 * GB))
    assert available_memory("cuda:1") == 2 * GB


@pytest.fixture
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    device_of.cache_clear()
    yield
    device_of.cache_clear()


@pytest.mark.usefixtures("one_gpu")
def test_devices_on_one_gpu_share_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    job = merge({"net": "lenet", "devices": "cuda:0-1", "share_cores": True, "iters": 4})
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (1 << 40, 1 << 40))
    found = placement(make_plan(job).step)
    both = sum(size for place, size in found.peaks.items() if place.device.startswith("cuda"))
    assert found.needed("cuda:0") == both
    assert len([place for place in found.peaks if place.device.startswith("cuda")]) == 2
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (both - 1, 1 << 40))
    with pytest.raises(ConfigError, match="does not fit into the memory of cuda:0"):
        make_plan(job)
