"""Jobs on several hosts: which process is which host, and which one writes the folder."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor

from purine.errors import ConfigError
from purine.job.caffe import is_prototxt
from purine.job.config import Job
from purine.job.folder import FollowerFolder, Meeting, RunFolder
from purine.job.launch import open_folder
from purine.job.options import OPTIONS
from purine.job.placing import hosts_of_job, over_hosts, scheme_of
from purine.job.plan import JobPlan
from purine.runtime.agreement import facts_of
from purine.transports.open_world import LINKS, OpenWorld
from purine.transports.processes import ProcessWorld, rank_and_size
from purine.transports.world import World

__all__ = ["TRANSPORT", "dismiss", "folder_on", "join_hosts", "joined", "opened"]

TRANSPORT = "PURINE_TRANSPORT"
"""The variable that names the transport; `tcp` without it."""

_OWN = frozenset(
    ("data", "mean_file", "net", "out", "share_cores", "test_net", "threads", "weights")
)
"""Options that hosts of one job need not have in common: paths, and what fits a machine."""


def join_hosts(job: Job) -> ProcessWorld | None:
    """The world of a job on several hosts; None for a job on one."""
    hosts = hosts_of_job(job)
    if len(hosts) == 1:
        return None
    size = rank_and_size()[1]
    wanted = tuple(f"host{number}" for number in range(len(hosts)))
    fewer = over_hosts(job) and 1 < size < len(hosts)  # the others may join later
    if (size != len(hosts) and not fewer) or set(hosts) != set(wanted):
        what = f"the devices are those of {len(hosts)} hosts, and {size} were started"
        expected = f"{len(hosts)} processes, and devices of {', '.join(wanted)}"
        remedy = f"start them: purine launch --hosts {len(hosts)} -- train ..., or torchrun"
        raise ConfigError(what, expected, f"{size} and devices of {', '.join(hosts)}", remedy)
    transport = os.environ.get(TRANSPORT, "tcp")
    if over_hosts(job) and hosts[0] != "host0":
        what, expected = "the first device is not one of the first host", "a device of host0 first"
        remedy = "write the devices of host0 first: it keeps what workers share"
        raise ConfigError(what, expected, f"one of {hosts[0]}", remedy)
    return ProcessWorld(transport)


def opened(world: ProcessWorld, plan: JobPlan, folder: RunFolder) -> OpenWorld | None:
    """The world of workers on the hosts that have met in `world`; from now on they join and leave.

    The first host is the server. It writes its address into the folder of the run. None if the
    others have trained everything meanwhile.
    """
    transport = os.environ.get(TRANSPORT, "tcp")
    servers = [OpenWorld.serving(os.environ["MASTER_ADDR"])] if world.first else []
    reached_at = [json.dumps([one.address, one.port, transport]) for one in servers]
    told = world.jointly(lambda: "".join(reached_at), op="open")
    world.engage()
    world.barrier()
    world.close()
    address, port, transport = json.loads(told[world.hosts[0]])
    opened: OpenWorld | None
    if servers:
        (opened,) = servers
        _tell_launcher()
        folder.write_meeting(Meeting(address, port, transport))
    else:
        scheme = scheme_of(plan.job)
        assert scheme is not None
        seat = hosts_of_job(plan.job).index(world.host) - scheme.servers
        rank = world.hosts.index(world.host)
        opened = OpenWorld.asking(
            address, port, transport=transport, seat=seat, rank=rank, traced=plan.job.trace
        )
    if opened is not None:
        opened.met = world
    return opened


def _tell_launcher() -> None:
    """Tell `purine launch` that hosts may join and leave from now on."""
    pipe = os.environ.get("PURINE_LAUNCHER")
    if pipe is not None:
        with suppress(OSError, ValueError):
            os.write(int(pipe), b"1")


def joined(folder: RunFolder, transport: str | None) -> OpenWorld:
    """The world of a worker that joins the job that runs in a folder."""
    address, port, engine = folder.read_meeting()
    if transport is None and engine not in LINKS:
        what, found = f"a host cannot join over {engine}", f"a job over {engine}"
        expected = f"a transport for hosts that come later: {', '.join(LINKS)}"
        remedy = "name the transport of this worker: --transport tcp"
        raise ConfigError(what, expected, found, remedy, where=folder.path)
    return OpenWorld.joining(address, port, transport=transport or engine)


def dismiss(folder: RunFolder, worker: int) -> None:
    """Tell a worker of the job that runs in a folder to leave."""
    address, port, _ = folder.read_meeting()
    world = OpenWorld.visiting(address, port)
    links = world.ledger.present()
    if worker not in links:
        what, found = f"there is no worker {worker} that could leave", f"worker {worker}"
        expected = f"one of workers {', '.join(map(str, sorted(links)))}" if links else "a worker"
        remedy = "the server's own worker stays with it" if worker == 0 else "see the progress"
        raise ConfigError(what, expected, found, remedy, where=folder.path)
    world.dismiss(links[worker])


def folder_on(world: World | None, plan: JobPlan, folder: RunFolder | None) -> RunFolder:
    """The folder of a run, which the first host creates and the others follow.

    Nothing is written unless all hosts have the same job, code and data.
    """
    if world is None:
        return open_folder(plan, folder)
    job = plan.job
    world.compare(facts_of(plan.data, seed=job.seed or 0, prefetch=job.prefetch) | _facts(plan))
    world.compare_step(plan.step)
    own: list[RunFolder] = []

    def make() -> str:
        own.extend([open_folder(plan, folder)] if world.first else [])
        return str(own[0].path.resolve()) if own else ""

    first = world.hosts[0]
    path = world.jointly(make, op="start")[first]
    shared = own[0] if own else FollowerFolder(Path(path))

    def see() -> str:
        if not shared.config_file.is_file():
            what = "this host does not see the folder of the run"
            expected = f"the folder that {first} made, on a file system that all hosts share"
            remedy = "let all hosts share the file system of --out"
            raise ConfigError(what, expected, "no such run", remedy, where=path)
        return ""

    world.jointly(see, op="start")
    return shared


def _facts(plan: JobPlan) -> dict[str, str]:
    """The facts that must be the same on all hosts of a job, besides those that their runs compare.

    Paths may differ; the values read from them may not. Graphs for tests are on devices of their
    hosts; they follow from the nets, the options and the data.
    """
    options = {
        name: str(getattr(plan.job, name))
        for name in OPTIONS
        if name not in _OWN and not (name == "solver" and is_prototxt(plan.job.solver))
    }
    return {
        **options,
        "number of iterations": str(plan.iterations),
        "net": plan.net.digest,
        "test net": "none" if plan.test_net is None else plan.test_net.digest,
        "tests": "no" if plan.test is None else "yes",
        "first values": _hash_of(plan.values),
    }


def _hash_of(values: Mapping[str, Tensor]) -> str:
    hashed = hashlib.sha256()
    for name, value in sorted(values.items()):
        hashed.update(f"{name} {value.dtype} {list(value.shape)}\n".encode())
        hashed.update(value.cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return hashed.hexdigest()
