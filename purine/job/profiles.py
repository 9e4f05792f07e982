"""Where the profile of a machine is kept, and its format.

`purine calibrate` writes a file for each kind of machine: its name has processor, cores and GPUs.
Predictions use it. Decisions that shape a graph (where a pipeline is cut, segments) do not, unless
`PURINE_PROFILE` names it: all hosts must decide alike, and the cuts of a graph may change its
rounding. So no bit of a training depends on a file that was not named.
"""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

import torch

from purine.analysis.cost import PROFILE, PROFILE_VARIABLE, VERSION, Profile, Rates, load_profile
from purine.files import write_whole
from purine.machine.cores import available

__all__ = ["machine_name", "own_profile", "profile_path", "profile_text", "save_profile"]

_FOLDER = "PURINE_CACHE"
"""The environment variable with the folder of profiles."""


def machine_name() -> str:
    """A description of this machine: processor, cores that may be used, and GPUs.

    >>> machine_name() == machine_name()
    True
    """
    name = f"{_processor()}, {len(available())} cores"
    if torch.cuda.is_available():
        count = torch.cuda.device_count()
        name += f", {count} x {torch.cuda.get_device_name(0)}"
    return name


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    model = next((line.partition(":")[2] for line in lines if line.startswith("model name")), "")
    return " ".join((model or platform.processor() or platform.machine()).split())


def profile_path() -> Path:
    """The file in which the profile of this machine is kept."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(os.environ.get(_FOLDER) or Path(home) / "purine")
    slug = re.sub(r"[^a-z0-9]+", "-", machine_name().lower()).strip("-")
    return folder / "profiles" / f"{slug}.yaml"


def own_profile() -> Profile:
    """The profile for predictions: that of `PURINE_PROFILE`, the one kept, or guesses."""
    if os.environ.get(PROFILE_VARIABLE):
        return PROFILE
    path = profile_path()
    return load_profile(path) if path.is_file() else PROFILE


def save_profile(profile: Profile, path: Path) -> None:
    """Write a profile, as `load_profile` reads it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, profile_text(profile))


def profile_text(profile: Profile) -> str:
    """A profile as YAML: what was measured, a line for each kernel.

    >>> print(profile_text(Profile(name="here")).splitlines()[1])
    version: 1
    """
    lines = [
        "# The profile of a machine: purine calibrate wrote it. PURINE_PROFILE may name it.",
        f"version: {VERSION}",
        f"name: {_quoted(profile.name)}",
        f"core: {_rates(profile.core)}",
        f"device: {_rates(profile.device)}",
        f"threads: {profile.threads}",
        f"dispatch: {profile.dispatch:.3e}",
        f"hop: {profile.hop:.3e}",
        f"crowding: {profile.crowding:.4f}",
        f"spread: {profile.spread:.4f}",
    ]
    if profile.wires:
        lines.append("wires:")
        for name, numbers in sorted(profile.wires.items()):
            lines.append(f"  {name}: [{', '.join(f'{number:.3e}' for number in numbers)}]")
    if profile.kernels.points:
        lines.append("kernels:  # kind, sizes, threads (0: a GPU), flops, bytes, seconds")
    for point in profile.kernels.points:
        sizes = ", ".join(map(str, point.sizes))
        lines.append(
            f"- [{_quoted(point.kind)}, [{sizes}], {point.threads}, {point.flops}, {point.bytes}, "
            f"{point.seconds:.4e}]"
        )
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _rates(rates: Rates) -> str:
    return f"{{flops: {rates.flops:.4e}, bytes: {rates.bytes:.4e}, overhead: {rates.overhead:.3e}}}"
