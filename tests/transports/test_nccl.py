"""What surrounds NCCL: which GPUs may meet, and how groups are made and ended.

There is no NCCL here. Gloo takes its place, in a group of one host.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from purine.errors import ConfigError
from purine.lowering.together import Group
from purine.transports import nccl
from purine.transports.nccl import connected, gpus_of, refuse_shared

VARIABLE = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
BOTH = Group("", ("host0", "host1"), ("cuda:0", "cuda:1"))
ALONE = Group("", ("host0",), ("cuda:0",))


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """GPUs whose names and numbers torch knows."""
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    monkeypatch.setattr(
        torch.cuda,
        "get_device_properties",
        lambda device: SimpleNamespace(name="H200", uuid=f"7f1c-{device.index}"),
    )


def test_hosts_tell_each_other_their_gpus(gpus: None) -> None:
    told = {host: gpus_of([BOTH, ALONE], host) for host in BOTH.hosts}
    assert json.loads(told["host0"]) == {"cuda:0 of host0": "H200 7f1c-0"}
    assert json.loads(told["host1"]) == {"cuda:1 of host1": "H200 7f1c-1"}
    assert json.loads(gpus_of([BOTH], "host2")) == {}
    refuse_shared([BOTH, ALONE], told)


def test_a_gpu_that_two_hosts_share_is_named(gpus: None) -> None:
    group = Group("", ("host0", "host1", "host2"), ("cuda:0", "cuda:1", "cuda:0"))
    told = {host: gpus_of([group], host) for host in group.hosts}
    with pytest.raises(ConfigError) as caught:
        refuse_shared([BOTH, group], told)
    text = str(caught.value)
    assert "cuda:0 of host0 and cuda:0 of host2 are one GPU: H200 7f1c-0" in text
    assert "CUDA_VISIBLE_DEVICES" in text
    assert "sharded" in text


def test_torch_without_nccl_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_nccl_available", lambda: False)
    with pytest.raises(ConfigError, match="cuda:0 of host0 cannot take part"):
        gpus_of([BOTH], "host0")


@pytest.fixture
def gloo(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str | None]]:
    """A world of one host, in which groups are Gloo's; how errors were handled as each was made."""
    handling: list[str | None] = []
    make = dist.new_group

    def new_group(ranks: list[int], **given: Any) -> object:
        assert given.pop("backend") == "nccl"
        handling.append(os.environ.get(VARIABLE))
        return make(ranks, backend="gloo", **given)

    class Event:
        def record(self) -> None:
            pass

        def query(self) -> bool:
            return True

    monkeypatch.setattr(dist, "new_group", new_group)
    monkeypatch.setattr(nccl, "device_of", lambda _: torch.device("cpu"))
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
    monkeypatch.setattr(nccl, "_abort_process_group", dist.destroy_process_group)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield handling
    dist.destroy_process_group()


@pytest.mark.parametrize("before", [None, "1"])
def test_a_group_leaves_its_errors_to_the_run(
    before: str | None, gloo: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    if before is not None:
        monkeypatch.setenv(VARIABLE, before)
    settings: dict[str, Any] = {
        "timeout": timedelta(seconds=9),
        "watched": lambda call: call(),
    }
    for end in ("close", "abort"):
        communicator = connected(ALONE, "host0", {"host0": 0}, **settings)
        assert communicator is not None
        assert os.environ.get(VARIABLE) == before
        line = torch.arange(3.0, dtype=torch.float64)
        communicator.reduce(line, "host0")
        communicator.broadcast(line, "host0")
        mark = communicator.mark()
        assert mark is not None
        assert mark.query()
        assert line.tolist() == [0.0, 1.0, 2.0]
        getattr(communicator, end)()
        communicator.abort()
        communicator.close()  # either ends it once
    assert gloo == ["0", "0"]
    assert connected(ALONE, "host1", {"host0": 0}, **settings) is None
