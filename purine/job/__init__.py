"""Training jobs: what to train, the graphs it takes, the folder it leaves, and the loop itself.

Nothing here prints; `purine.cli` is one way to start a job and to show how it goes.
"""

from purine.job.config import Job, job_text, merge, read_options
from purine.job.folder import RunFolder
from purine.job.measure import Measured, measure
from purine.job.plan import Plan, make_plan
from purine.job.resume import resume
from purine.job.training import Event, Saved, Tested, Trained, Training

__all__ = [
    "Event",
    "Job",
    "Measured",
    "Plan",
    "RunFolder",
    "Saved",
    "Tested",
    "Trained",
    "Training",
    "job_text",
    "make_plan",
    "measure",
    "merge",
    "read_options",
    "resume",
]
