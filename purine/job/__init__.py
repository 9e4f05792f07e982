"""Training jobs: their options, graphs, run folder, and the training loop.

Nothing here prints; `purine.cli` is one way to start a job and to show its progress. Names are
imported when they are first used, so that the table of options can be read without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from purine.job.config import Job, merge
    from purine.job.file import job_text, read_options
    from purine.job.folder import RunFolder
    from purine.job.launch import job_layers, open_folder, plan_run
    from purine.job.measuring import Measured, measure
    from purine.job.plan import JobPlan, make_plan
    from purine.job.repeat import Replayed, replay
    from purine.job.training import Event, Saved, Tested, Trained, Training

__all__ = [
    "Event",
    "Job",
    "JobPlan",
    "Measured",
    "Replayed",
    "RunFolder",
    "Saved",
    "Tested",
    "Trained",
    "Training",
    "job_layers",
    "job_text",
    "make_plan",
    "measure",
    "merge",
    "open_folder",
    "plan_run",
    "read_options",
    "replay",
]

_MODULES = ("config", "file", "folder", "plan", "launch", "repeat", "training", "measuring")

if not TYPE_CHECKING:  # a type checker reads the imports above

    def __getattr__(name: str) -> object:
        if name in __all__:
            for module in _MODULES:
                members = vars(import_module(f"purine.job.{module}"))
                if name in members["__all__"]:
                    return members[name]
        raise AttributeError(f"module 'purine.job' has no attribute {name!r}")
