"""The identity of a run, stored in its checkpoints so that one of another run is refused.

It has everything that decides the numbers and stays when a run is resumed: the net, and the options
that the table marks with `identifies`. Devices, the scheme of parallelism, the end of the run and
paths of files (a folder may be moved) are not part of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from purine.errors import CheckpointError
from purine.graph import Graph
from purine.job.caffe import is_prototxt
from purine.job.config import Job
from purine.job.options import OPTIONS
from purine.runtime.checkpoint import Checkpoint

__all__ = ["RUN", "identity", "refuse_foreign"]

RUN = "run"
"""The field of a checkpoint's `extra` that holds the identity of its run."""


def identity(job: Job, net: Graph, *, samples: int | None = None) -> dict[str, object]:
    """The identity of the run of a job, as plain JSON; `samples` are those it is trained on."""
    facts: dict[str, object] = {
        name: getattr(job, name) for name, option in OPTIONS.items() if option.identifies
    }
    if not is_prototxt(job.solver):
        facts["solver"] = job.solver
    if samples is not None:
        facts["samples"] = samples
    plain: dict[str, object] = json.loads(json.dumps({**facts, "net": net.digest}))
    return plain


def refuse_foreign(saved: Checkpoint, own: Mapping[str, object]) -> None:
    """Raise `CheckpointError` for a checkpoint of a run with another identity.

    A checkpoint that an earlier version wrote has only the seed.
    """
    extra = saved.extra.get(RUN)
    stored = {**(extra if isinstance(extra, dict) else {}), "seed": saved.seed}
    for key, value in own.items():
        if key in stored and stored[key] != value:
            what = f"the checkpoint is of another run: its {key} differs"
            expected, found = f"{key} {value}, as this run has", f"{key} {stored[key]}"
            remedy = (
                f"restore the {key} of this run if it was changed, or move the checkpoint "
                "to the folder of its own run; this one goes on from what is left"
            )
            raise CheckpointError(what, expected, found, remedy, where=str(saved.path))
