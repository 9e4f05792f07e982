"""The memory that is available, to compare a forecast with before anything runs.

A process may have less than the machine: the limits of its control groups (both versions) count,
less what is in use under them. Pages of the file cache that the system can reclaim count as free.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import torch

from purine.errors import ConfigError

__all__ = ["available_memory", "missing_device"]


def available_memory(device: str = "cpu:0", *, root: Path = Path("/")) -> int:
    """The bytes that are available on a device; all CPU devices of a host share one memory.

    `root` is the folder that holds `proc` and `sys`.

    >>> available_memory() > 0
    True
    """
    kind, _, number = device.partition(":")
    if kind == "cpu":
        return max(0, min([_of_machine(root), *_under_limits(root)]))
    if kind == "cuda" and number.isdigit() and int(number) < torch.cuda.device_count():
        return int(torch.cuda.mem_get_info(int(number))[0])
    expected = f"cpu:k, or one of the {torch.cuda.device_count()} GPUs that torch sees"
    remedy = "name a device that the machine has, for example cpu:0"
    raise missing_device(device, expected, device, remedy)


def missing_device(device: str, expected: str, found: str, remedy: str) -> ConfigError:
    """The error for a device that this machine does not have."""
    return ConfigError(f"device {device} is not there", expected, found, remedy, location=device)


def _of_machine(root: Path) -> int:
    """What the system reports as available, or else all of its memory."""
    for line in _lines(root / "proc/meminfo"):
        key, _, value = line.partition(":")
        if key == "MemAvailable":
            return int(value.split()[0]) << 10
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _under_limits(root: Path) -> Iterator[int]:
    """What is left under the limit of each control group of this process.

    A container may not see its group by its path; then the root of the mount is its group.
    """
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            mounts, files, cached = ["memory"], _V1, "total_inactive_file"
        elif not controllers:
            mounts, files, cached = ["", "unified"], _V2, "inactive_file"
        else:
            continue
        group = PurePosixPath(path.lstrip("/"))
        for mount in mounts:
            for part in dict.fromkeys((group, *group.parents)):
                left = _left(root / "sys/fs/cgroup" / mount / part, files, cached)
                if left is not None:
                    yield left


_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes")
_V2 = ("memory.max", "memory.current")


def _left(folder: Path, files: tuple[str, str], cached: str) -> int | None:
    """The limit of one group less what it uses; None without a limit."""
    limit, used = (_number(folder / name) for name in files)
    if limit is None or used is None:
        return None
    for line in _lines(folder / "memory.stat"):
        key, _, value = line.partition(" ")
        if key == cached:
            used -= int(value)
    return limit - used


def _number(file: Path) -> int | None:
    text = "".join(_lines(file)).strip()
    return int(text) if text.isdigit() else None


def _lines(file: Path) -> list[str]:
    """The lines of a system file; none if there is no such file."""
    try:
        return file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
