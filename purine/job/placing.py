"""Where a job is trained: its devices, its scheme of parallelism, and the memory that it needs.

All of this is known before anything starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from purine.analysis.infer import size_in_bytes
from purine.errors import ConfigError
from purine.graph import Graph, Location
from purine.job.config import Job
from purine.lowering import Options, lower, options_for
from purine.lowering.host_rules import host_problems
from purine.lowering.hosts import hosts_of, part_of
from purine.lowering.workers import alone, has_workers, here, worker_parts
from purine.machine import capacity
from purine.machine.cores import cores_of, on_gpus, threads_of, threads_of_all
from purine.optimize import layout
from purine.parallel import Scheme
from purine.placement.copies import bytes_moved
from purine.placement.devices import as_locations, is_cpu, parse_devices
from purine.placement.place import to_device
from purine.recipe import refuse_devices
from purine.registry.aten import device_of
from purine.transports.processes import rank_and_size

__all__ = [
    "Placement",
    "compiles",
    "crowding",
    "hosts_of_job",
    "laid_out",
    "locations_of",
    "low_precision",
    "measuring_threads",
    "megabytes",
    "moved",
    "over_hosts",
    "own_gpu",
    "own_host",
    "placement",
    "refuse_unfit",
    "scheme_of",
    "threads_for",
    "workers_of",
]


@dataclass(frozen=True, slots=True)
class Placement:
    """Peak bytes of a step on each device, free bytes of each memory of `host`, and bytes moved."""

    peaks: Mapping[Location, int]
    available: Mapping[str, int]
    moved: int
    host: str

    def here(self, memory: str) -> list[Location]:
        """The devices of the host that have a memory."""
        return [at for at in self.peaks if at.host == self.host and _memory(at) == memory]

    def needed(self, memory: str) -> int:
        """The bytes needed of a memory."""
        return sum(self.peaks[location] for location in self.here(memory))


def hosts_of_job(job: Job) -> tuple[str, ...]:
    """The hosts that the devices of a job name, each once."""
    return tuple(dict.fromkeys(location.host for location in as_locations(job.devices)))


def scheme_of(job: Job) -> Scheme | None:
    """The scheme of a job, with nothing left open; None for a job on one device without one."""
    count = len(parse_devices(job.devices))
    if job.parallel is None:
        return Scheme(data=count) if count > 1 else None
    scheme = Scheme.parse(job.parallel)
    if scheme.asynchronous is not None:
        _refuse_for_workers(job)
    most = "data" if scheme.asynchronous is None else "workers"
    if most not in {item.partition("=")[0].strip() for item in job.parallel.split(",")}:
        return scheme.over(count).settled()
    refuse_devices(scheme, as_locations(job.devices))
    return scheme.settled()


def workers_of(job: Job) -> int:
    """The number of asynchronous workers of a job; 1 if it is synchronous."""
    scheme = scheme_of(job)
    return 1 if scheme is None else scheme.synchronous().workers


def _refuse_for_workers(job: Job) -> None:
    """Refuse options that do not work with workers."""
    for name, without in (("compile", "--compile"), ("compress", "--compress")):
        value = getattr(job, name)
        if value not in (None, False, "none"):
            what, found = f"workers cannot train with {without}", f"{name} {value}"
            remedy = f"leave {without} out, or asynchronous"
            raise ConfigError(what, f"no {without} with workers", found, remedy)
    if job.precision == "fp16":
        what, found = "workers cannot train in fp16, which scales the loss", "precision fp16"
        raise ConfigError(what, "fp32 or bf16", found, "use --precision bf16")


def over_hosts(job: Job) -> bool:
    """Whether a job is of workers on several hosts."""
    scheme = scheme_of(job)
    apart = scheme is not None and scheme.synchronous().asynchronous is not None
    return apart and len(hosts_of_job(job)) > 1


def own_host(job: Job) -> str:
    """The host of this process; the first of the job without a launcher."""
    hosts, (rank, size) = hosts_of_job(job), rank_and_size()
    name = f"host{rank}"
    return name if size == len(hosts) and name in hosts else hosts[0]


def _devices_here(job: Job) -> list[Location]:
    host = own_host(job)
    return [location for location in as_locations(job.devices) if location.host == host]


def threads_for(job: Job) -> int:
    """The default number of threads of each device of this host."""
    devices = sorted({location.device for location in _devices_here(job)})
    return threads_of_all() if len(devices) == 1 else threads_of(devices)


def crowding(job: Job) -> tuple[str, ...]:
    """A note if one device has more threads than cores; several devices refuse or share them."""
    cores = threads_of(("cpu:0",))
    if job.threads is None or job.threads <= cores or len(parse_devices(job.devices)) > 1:
        return ()
    return (
        f"--threads {job.threads} is more than the {cores} cores there are, which makes a run many "
        "times slower; without --threads it has one for each core",
    )


def measuring_threads(job: Job) -> int | None:
    """The threads that measure a trained net: those of all its devices together."""
    if job.threads is None:
        return None
    devices = parse_devices(job.devices)
    most = threads_of(("cpu:0",))
    return job.threads if len(devices) == 1 else min(most, job.threads * len(devices))


def locations_of(job: Job) -> tuple[Location, ...]:
    """The devices of a job's step. Without a scheme all CPU devices are the first one."""
    locations = as_locations(job.devices)
    alone = job.parallel is None and len(locations) == 1 and is_cpu(locations[0])
    return (Location(),) if alone else locations


def low_precision(job: Job) -> str | None:
    """The low precision of a job, if any; TF32 is an option of the run."""
    return None if job.precision in ("fp32", "tf32") else job.precision


def laid_out(job: Job, graph: Graph) -> Graph:
    """A graph in the layout that a job asks for; by default `auto` on GPUs, else unchanged."""
    form = job.layout or ("auto" if on_gpus(graph) else None)
    return graph if form is None else layout(graph, form)


def own_gpu(job: Job) -> str | None:
    """The first GPU that a job has on this host."""
    return next((at.device for at in _devices_here(job) if not is_cpu(at)), None)


def moved(job: Job, graph: Graph) -> Graph:
    """A graph of one device on the first GPU that a job has on this host, if there is one."""
    gpu = own_gpu(job)
    return graph if gpu is None else to_device(graph, gpu)


def compiles(job: Job, step: Graph) -> bool:
    """Whether a job's step is compiled: on GPUs, unless the job says otherwise."""
    return on_gpus(step) if job.compile is None else job.compile


def refuse_unfit(step: Graph, job: Job) -> None:
    """Raise `ConfigError` if a device of this host is missing or has too little memory."""
    host = own_host(job)
    several = len(hosts_of(step)) > 1
    apart = several and has_workers(step)
    part = here(step, host) if apart else part_of(step, host) if several else step
    cores_of(part, threads=job.threads, share=job.share_cores)
    _refuse_prefetch(part, job.prefetch)
    lowered = part if apart else lower(step, Options(host=host) if several else None).graph
    all_blobs = sum(map(size_in_bytes, lowered.blobs.values()))
    if all_blobs > min(map(_available, {_memory(op.location) for op in part.ops.values()})):
        placement(step, host)


def _refuse_prefetch(step: Graph, prefetch: int) -> None:
    """Refuse to prefetch more batches than there is memory for."""
    names = [name for op in step.ops.values() if op.kind == "Data" for name in op.outputs if name]
    batch, available = sum(size_in_bytes(step.blobs[name]) for name in names), _available("cpu")
    if prefetch * batch > available:
        what = f"{prefetch} batches that are read ahead do not fit into memory"
        expected = f"at most {megabytes(available)}, which is available"
        found = f"{megabytes(prefetch * batch)}, {megabytes(batch)} a batch"
        remedy = f"lower --prefetch to {max(1, available // max(1, batch) // 2)} or fewer"
        raise ConfigError(what, expected, found, remedy)


def placement(step: Graph, host: str | None = None) -> Placement:
    """The memory that a step needs on its devices, and the memory of this host (by default the
    first one).

    Refuses a step that does not fit into this memory, or whose hosts do not fit each other.
    """
    host = host or hosts_of(step)[0]
    apart = has_workers(step) and len(hosts_of(step)) > 1
    peaks: dict[Location, int] = {}
    for part in map(alone, worker_parts(step).values()) if apart else (step,):
        for error in host_problems(part):
            raise error
        for at, size in lower(part, options_for(part)).peak_memory().items():
            peaks[at] = peaks.get(at, 0) + size  # what workers share is counted for each
    memories = sorted({_memory(location) for location in peaks if location.host == host})
    available = {memory: _available(memory) for memory in memories}
    needs = Placement(peaks, available, bytes_moved(step), host)
    for memory, size in available.items():
        if needs.needed(memory) > size:
            raise _too_large(needs, memory)
    return needs


def _too_large(needs: Placement, memory: str) -> ConfigError:
    locations = needs.here(memory)
    worst = max(locations, key=needs.peaks.__getitem__)
    peak = f", {megabytes(needs.peaks[worst])} of it on {worst.device}"
    share = f" on {len(locations)} devices{peak}" if len(locations) > 1 else ""
    return ConfigError(
        f"the net does not fit into the memory of {memory}",
        location=str(worst),
        expected=f"at most {megabytes(needs.available[memory])}, which is available",
        found=f"{megabytes(needs.needed(memory))} for an iteration{share}",
        remedy="lower --batch, cut it into micro-batches (--parallel micro=4), or keep less for "
        "the backward (--parallel recompute=8)",
    )


def _available(memory: str) -> int:
    return capacity.available_memory("cpu:0" if memory == "cpu" else memory)


def megabytes(size: int) -> str:
    """A number of bytes as text."""
    return f"{size / 1e6:,.1f} MB"


def _memory(location: Location) -> str:
    """The memory of a location. All CPU devices share one, and so do devices on one GPU."""
    return str(device_of(location))
