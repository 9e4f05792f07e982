"""Repeating an asynchronous run in the order of its record: the same bits."""

from __future__ import annotations

from dataclasses import dataclass

from purine.errors import ConfigError
from purine.job.folder import RunFolder
from purine.job.launch import resume
from purine.job.placing import hosts_of_job, over_hosts
from purine.runtime import checkpoint
from purine.runtime.run import Run
from purine.runtime.worker_states import record_of

__all__ = ["Replayed", "replay"]


@dataclass(frozen=True, slots=True)
class Replayed:
    """The number of replayed iterations and of workers, and the states that differ."""

    iterations: int
    workers: int
    different: tuple[str, ...]


def replay(folder: RunFolder) -> Replayed:
    """Train the iterations in the record of a run, and compare all states with its newest
    checkpoint."""
    if over_hosts(folder.read_config()):
        what, expected = "there is no record of updates over hosts", "workers on one host"
        remedy = "train with workers on one host to replay what they do"
        found = f"workers on {len(hosts_of_job(folder.read_config()))}"
        raise ConfigError(what, expected, found, remedy, where=folder.path)
    record = record_of(folder.path)
    plan = resume(folder, {})
    job = plan.job
    saved = checkpoint.load(folder.path, step=plan.step)
    if record.start:
        raise ConfigError(
            "the record does not begin at the start of the run",
            where=folder.path,
            expected="a run that was trained with the same devices and scheme throughout",
            found=f"a record from iteration {record.start} on",
            remedy="replay it in Python, from a checkpoint of that iteration: pu.Run(replay=...)",
        )
    with Run(
        plan.step,
        data=plan.data,
        seed=job.seed or 0,
        threads=job.threads,
        share_cores=job.share_cores,
        tf32=job.precision == "tf32",
        replay=record.split(saved.iteration)[0],
    ) as run:
        run.set_states(plan.values)
        for _ in run.steps(saved.iteration):
            pass
        states = run.states()
    different = (n for n, value in saved.values.items() if not states[n].equal(value))
    return Replayed(saved.iteration, len(record.starts), tuple(sorted(different)))
