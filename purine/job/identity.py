"""What makes a run this run and no other, so that a checkpoint of another is not taken for its own.

Everything counts that decides the numbers and that a run keeps when it goes on: its seed, its net,
and the settings of its data and solver. What may change does not count: devices, the scheme of
parallelism, where to stop, and the paths of files, as a folder may be moved.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from purine.errors import CheckpointError
from purine.graph import Graph
from purine.job.caffe import is_prototxt
from purine.job.config import Job
from purine.runtime.checkpoint import Checkpoint

__all__ = ["RUN", "identity", "refuse_foreign"]

RUN = "run"
"""The field of a checkpoint's `extra` that holds the identity of its run."""

_SETTINGS = (
    *("seed", "batch", "accumulate", "precision", "lr", "momentum", "weight_decay", "clip"),
    *("mean", "scale", "crop", "pad", "mirror"),
)


def identity(job: Job, net: Graph, *, samples: int | None = None) -> dict[str, object]:
    """The identity of the run of a job, as plain JSON; `samples` are those it is trained on."""
    found: dict[str, object] = {key: getattr(job, key) for key in _SETTINGS}
    if not is_prototxt(job.solver):
        found["solver"] = job.solver
    if samples is not None:
        found["samples"] = samples
    plain: dict[str, object] = json.loads(json.dumps({**found, "net": net.digest}))
    return plain


def refuse_foreign(saved: Checkpoint, own: Mapping[str, object]) -> None:
    """Raise `CheckpointError` for a checkpoint of a run with another identity.

    One that an earlier version wrote has the seed alone to tell by.
    """
    stored = saved.extra.get(RUN)
    found = {**(stored if isinstance(stored, dict) else {}), "seed": saved.seed}
    for key, value in own.items():
        if key in found and found[key] != value:
            raise CheckpointError(
                f"the checkpoint is of another run: its {key} differs",
                where=str(saved.path),
                expected=f"{key} {value}, as this run has",
                found=f"{key} {found[key]}",
                remedy=f"restore the {key} of this run if it was changed, or move the checkpoint "
                "to the folder of its own run; this one goes on from what is left",
            )
