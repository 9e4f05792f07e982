"""Collectives between GPUs of several hosts: NCCL, through `torch.distributed`.

A host has one GPU in each group. NCCL refuses, or hangs on, a group in which one GPU is twice. So
hosts exchange the identities of their GPUs before any group is created.

torch's own error handling is switched off for these groups, because it ends the process when a peer
is gone. Here the transport reports which host is lost, and the run aborts the communicators and
raises.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import _abort_process_group

from purine.errors import ConfigError
from purine.graph import Location
from purine.lowering.together import Group
from purine.machine.environment import variable
from purine.registry.aten import device_of
from purine.transports.communicator import Communicator, Mark

__all__ = ["NcclCommunicator", "connected", "gpus_of", "refuse_shared"]

_HANDLING = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
_REMEDY = "use topology 'sharded', whose values go through the memory of the hosts"


def gpus_of(groups: Sequence[Group], host: str) -> str:
    """The GPUs of a host in some groups, as a text for the others: the identity of each, by name.

    Raises `ConfigError` if NCCL cannot use one.
    """
    own = {group.gpu_of(host) for group in groups if host in group.hosts}
    gpus = {}
    for location in sorted(own):
        if not dist.is_nccl_available():
            raise ConfigError(
                f"{_named(location)} cannot take part in a collective: torch has no NCCL there",
                expected="a build of torch with CUDA and NCCL, for topology 'native' over GPUs",
                found=f"torch {torch.__version__}",
                remedy=_REMEDY,
            )
        facts = torch.cuda.get_device_properties(device_of(location))
        gpus[_named(location)] = f"{facts.name} {facts.uuid}"
    return json.dumps(gpus)


def refuse_shared(groups: Sequence[Group], told: Mapping[str, str]) -> None:
    """Raise `ConfigError` if one GPU is in a group twice; `told` is the text of `gpus_of` of each
    host.

    >>> group = Group("", ("host0", "host1"), ("cuda:0", "cuda:0"))
    >>> told = {f"host{k}": json.dumps({f"cuda:0 of host{k}": "H200 7f1c"}) for k in range(2)}
    >>> refuse_shared([group], told)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    purine.errors.ConfigError: cuda:0 of host0 and cuda:0 of host1 are one GPU: H200 7f1c...
    """
    gpus: dict[str, str] = {}
    for text in told.values():
        gpus |= json.loads(text)
    for group in groups:
        seen: dict[str, str] = {}
        for name in map(_named, map(group.gpu_of, group.hosts)):
            gpu = gpus[name]
            if gpu in seen:
                raise ConfigError(
                    f"{seen[gpu]} and {name} are one GPU: {gpu}",
                    expected="a GPU for each host of a collective: NCCL takes none twice",
                    found=", ".join(f"{at} is {gpus[at]}" for at in (seen[gpu], name)),
                    remedy=f"give each host a GPU of its own (CUDA_VISIBLE_DEVICES), or {_REMEDY}",
                )
            seen[gpu] = name


def _named(location: Location) -> str:
    return f"{location.device} of {location.host}"


def connected(
    group: Group,
    host: str,
    ranks: Mapping[str, int],
    *,
    timeout: timedelta,
    watched: Callable[[Callable[[], object]], object],
) -> NcclCommunicator | None:
    """A new communicator, connected to those of all hosts; None for a host outside of the group.

    All hosts of the job call it. `watched` runs calls that wait for other hosts.
    """
    numbers = [ranks[member] for member in group.hosts]
    # torchrun sets this too, and then an error ends the process. Here the run decides.
    with variable(_HANDLING, "0"):
        torch_group = watched(partial(dist.new_group, numbers, backend="nccl", timeout=timeout))
    if host not in group.hosts:
        return None
    assert isinstance(torch_group, dist.ProcessGroup)
    communicator = NcclCommunicator(torch_group, ranks)
    watched(partial(_first_call, communicator, device_of(group.gpu_of(host)), group.hosts[0]))
    return communicator


def _first_call(communicator: NcclCommunicator, device: torch.device, root: str) -> None:
    """NCCL connects with the first call, which waits for all hosts."""
    communicator.broadcast(torch.zeros(1, device=device), root)
    torch.cuda.synchronize(device)


class NcclCommunicator(Communicator):
    """The collectives of NCCL in a group of `torch.distributed`, enqueued on the current stream."""

    enqueues = True

    def __init__(self, group: dist.ProcessGroup, ranks: Mapping[str, int]) -> None:
        self._group, self._ranks = group, ranks
        self._mark: torch.cuda.Event | None = None
        self._ended = False

    def reduce(self, line: Tensor, root: str) -> None:
        dist.reduce(line, dst=self._ranks[root], group=self._group)
        self._note()

    def broadcast(self, line: Tensor, root: str) -> None:
        dist.broadcast(line, src=self._ranks[root], group=self._group)
        self._note()

    def _note(self) -> None:
        create: Callable[[], torch.cuda.Event] = torch.cuda.Event
        self._mark = create()
        self._mark.record()

    def mark(self) -> Mark | None:
        return self._mark

    def close(self) -> None:
        if not self._ended:
            self._ended = True
            dist.destroy_process_group(self._group)

    def abort(self) -> None:
        if not self._ended:
            self._ended = True
            _abort_process_group(self._group)
