"""Parts of hosts that do not fit each other are refused, with the ops and the hosts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import purine as pu
from purine.errors import GraphError
from purine.graph import CHANNELS_LAST, Blob, Builder, Graph, save_yaml
from purine.lowering import lower, options_for
from purine.lowering.host_rules import host_problems, problems_of_parts
from purine.lowering.hosts import hosts_of, part_of
from purine.parallel.reduce import Topology
from tests.command import call
from tests.lowering.test_hosts import SCHEMES, chain, step_of


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_parts_of_a_step_fit_before_and_after_all_passes(scheme: dict[str, object]) -> None:
    step = step_of(**scheme)
    assert host_problems(step) == []
    options = options_for(step)
    assert options.segments
    lowered = {host: lower(step, replace(options, host=host)).graph for host in hosts_of(step)}
    assert list(problems_of_parts(lowered)) == []


@pytest.mark.parametrize(
    ("topology", "hosts"), [("ring", 4), ("tree", 6), ("sharded", 18), ("native", 6)]
)
def test_segments_of_hosts_do_not_wait_for_each_other(topology: Topology, hosts: int) -> None:
    """Sums of many small units go along routes that begin at different hosts."""
    net = pu.backward(pu.zoo.mlp(batch=1, hidden=(4,)))
    step = pu.solvers.sgd(pu.solvers.clip_by_norm(net, 0.5), lr=0.1, momentum=0.9)
    devices = f"host0-{hosts - 1}:cpu:0"
    step = pu.parallel.replicate(step, devices, topology=topology, unit=1 << 11)
    options = options_for(step)
    lowered = {host: lower(step, replace(options, host=host)).graph for host in hosts_of(step)}
    assert list(problems_of_parts(lowered)) == []


def changed(host: str, change: Callable[[Builder], None]) -> list[GraphError]:
    """What is wrong after a change of one part of the chain."""
    parts = {name: part_of(chain(), name) for name in ("host0", "host1")}
    builder = Builder(parts[host])
    change(builder)
    return list(problems_of_parts({**parts, host: builder.graph()}))


def renumber(op: str, channel: int) -> Callable[[Builder], None]:
    def change(builder: Builder) -> None:
        old = builder.ops[op]
        builder.ops[op] = replace(old, attributes={**old.attributes, "channel": channel})

    return change


def test_an_end_without_another_is_named() -> None:
    first, second = changed("host1", renumber("there", 7))
    assert "channel 0 from host 'host0' to host 'host1' has 1 puts and 0 arrivals" in str(first)
    assert "put 'put/there' at 'host0', no arrival at 'host1'" in str(first)
    assert "no put at 'host0', arrival 'there' at 'host1'" in str(second)


def test_two_ends_of_one_sort_are_named() -> None:
    first, *_ = changed("host0", renumber("signal/work/end", 0))
    assert "has 1 puts and 2 arrivals" in str(first)
    assert "arrival 'back', arrival 'signal/work/end' at 'host0'" in str(first)


@pytest.mark.parametrize(
    ("blob", "found"),
    [
        (Blob("a@1", (3,)), "float32 [3]"),
        (Blob("a@1", (2,), "float64"), "float64 [2]"),
    ],
)
def test_ends_of_different_forms_are_named(blob: Blob, found: str) -> None:
    def change(builder: Builder) -> None:
        builder.blobs["a@1"] = replace(blob, location=pu.Location("host1"))

    (error,) = changed("host1", change)
    assert error.op == "put/there"
    assert error.expected == f"{found}, as arrival 'there' at 'host1' has"
    assert error.found == "float32 [2], as put 'put/there' at 'host0' has"


def test_hosts_that_wait_for_each_other_are_shown() -> None:
    def change(builder: Builder) -> None:
        builder.control.add(("back", "make"))
        builder.control.remove(("put/there", "back"))

    (error,) = changed("host0", change)
    assert "hosts wait for each other in a cycle" in str(error)
    for name in ("host0/make", "host0/put/there", "host1/there", "host1/work", "host0/back"):
        assert name in str(error)


def other_layout() -> Graph:
    """A copy between hosts that would have to change the order of the bytes."""
    builder = Builder()
    here, there = pu.Location("host0"), pu.Location("host1")
    builder.blob("x", (2, 3, 4, 4), location=here)
    builder.blobs["x"] = replace(builder.blobs["x"], layout=CHANNELS_LAST)
    builder.blob("x@1", (2, 3, 4, 4), location=there)
    builder.blob("y", (2, 3, 4, 4), location=there)
    builder.op("copy", "Copy", ["x"], ["x@1"], location=there, lane="inbound")
    builder.op("read", "Relu", ["x@1"], ["y"], location=there)
    builder.op("here", "Relu", ["x"], ["z"], location=here)
    builder.blob("z", (2, 3, 4, 4), location=here)
    builder.outputs = ["y", "z"]
    return builder.graph()


def test_check_looks_at_all_hosts(tmp_path: Path) -> None:
    save_yaml(other_layout(), tmp_path / "step.yaml")
    checked = call("check", str(tmp_path / "step.yaml"))
    assert checked.code == 2
    assert "channel 0 from host 'host0' to host 'host1' has ends of different forms" in checked.err
    assert "float32 [2, 3, 4, 4] channels-last, as put 'put/copy' at 'host0'" in checked.err
    save_yaml(step_of(), tmp_path / "step.yaml")
    assert call("check", str(tmp_path / "step.yaml")).code == 0


def test_a_dry_run_looks_at_all_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = GraphError("the hosts do not fit each other")
    monkeypatch.setattr("purine.job.placing.host_problems", lambda step: [wrong])
    devices = ["--devices", "host0-1:cpu:0", "--share-cores"]
    shown = call("train", "--net", "mlp", *devices, "--dry-run")
    assert shown.code == 2
    assert str(wrong) in shown.err
