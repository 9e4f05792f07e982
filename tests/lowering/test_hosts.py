"""The parts of hosts fit each other, and read as what they are."""

from __future__ import annotations

from graphlib import TopologicalSorter

import pytest

import purine as pu
from purine.analysis.infer import RegisteredKinds
from purine.errors import ConfigError
from purine.graph import Builder, Graph
from purine.graph.verify import problems
from purine.lowering import Options, lower
from purine.lowering.hosts import Channel, channels_of, hosts_of, part_of

SCHEMES: list[dict[str, object]] = [
    {},
    {"data": 4, "topology": "ring"},
    {"data": 4, "topology": "tree"},
    {"data": 4, "topology": "server"},
    {"data": 4, "topology": "native"},
    {"data": 2, "pipeline": 2, "topology": "native"},
    {"pipeline": 4},
    {"data": 2, "pipeline": 2},
    {"model": 4},
    {"data": 2, "model": 2},
]


def step_of(**scheme: object) -> Graph:
    return pu.compose(
        pu.zoo.lenet(batch=8),
        solver=lambda net: pu.solvers.sgd(net, lr=0.1, momentum=0.9),
        devices="host0-1:cpu:0-1",
        **scheme,
    )


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_parts_are_graphs_that_fit_each_other(scheme: dict[str, object]) -> None:
    step = step_of(**scheme)
    parts = {host: part_of(step, host) for host in hosts_of(step)}
    incoming: dict[tuple[str, str, int], Channel] = {}
    outgoing: dict[tuple[str, str, int], Channel] = {}
    for host, part in parts.items():
        assert problems(part, RegisteredKinds()) == []
        assert {op.location.host for op in part.ops.values()} == {host}
        for ends, channels in zip((incoming, outgoing), channels_of(part, host), strict=True):
            ends |= {(c.source, c.target, c.number): c for c in channels}
    assert incoming
    assert incoming.keys() == outgoing.keys()
    for key, channel in incoming.items():
        sent, received = outgoing[key].blob, channel.blob
        assert (sent is None) == (received is None)
        if sent is not None and received is not None:
            assert (sent.shape, sent.dtype, sent.layout) == (
                *(received.shape, received.dtype, received.layout),
            )
    states = [name for part in parts.values() for name in part.states]
    assert set(states) == set(step.states)
    twice = {name for name in states if states.count(name) > 1}
    assert twice <= {"seed", "iteration"}


def test_hosts_keep_their_own_clock_and_rate() -> None:
    step = step_of()
    part = part_of(step, "host1")
    assert {"seed", "iteration"} <= part.states.keys()
    sent = {op.outputs[0] for op in part.ops.values() if op.kind == "Arrival"}
    clock = ("seed@", "iteration@", "lr@host1/cpu")
    assert not [name for name in sent if name.startswith(clock)]


def test_every_host_gets_the_scalars_that_the_step_returns() -> None:
    step = step_of()
    outputs = {host: set(part_of(step, host).outputs) for host in hosts_of(step)}
    assert "loss" in outputs["host0"]
    assert "loss@host1/results" in outputs["host1"]


def test_a_step_on_one_host_is_its_own_part() -> None:
    step = pu.compose(pu.zoo.mlp(batch=8), solver=pu.solvers.sgd, devices="cpu:0-1")
    assert part_of(step, "127.0.0.1") is step


def test_an_unknown_host_is_named() -> None:
    with pytest.raises(ConfigError, match="host2") as caught:
        part_of(step_of(), "host2")
    assert "host0" in str(caught.value)


def chain() -> Graph:
    """A blob goes from one host to another and comes back; a control edge crosses too."""
    builder = Builder()
    here, there = pu.Location("host0"), pu.Location("host1")
    homes = {"a": here, "a@1": there, "b": there, "b@0": here, "c": here}
    for name, at in homes.items():
        builder.blob(name, (2,), location=at)
    builder.op("make", "Relu", [], ["a"], location=here)
    builder.op("there", "Copy", ["a"], ["a@1"], location=there, lane="inbound")
    builder.op("work", "Relu", ["a@1"], ["b"], location=there)
    builder.op("back", "Copy", ["b"], ["b@0"], location=here, lane="inbound")
    builder.op("end", "Relu", ["b@0"], ["c"], location=here)
    builder.control = {("work", "end")}
    builder.outputs = ["c"]
    return builder.graph()


def test_the_text_of_a_part() -> None:
    assert str(part_of(chain(), "host0")) == GOLDEN[0]
    assert str(part_of(chain(), "host1")) == GOLDEN[1]


def test_ops_with_a_path_through_another_host_are_not_one_segment() -> None:
    """The arrival behind the other host comes after the put, also for who sees this part alone."""
    part = part_of(chain(), "host0")
    assert ("put/there", "back") in part.control
    order = part.order
    assert order.index("make") < order.index("put/there") < order.index("back")


@pytest.mark.parametrize("topology", ["sharded", "server", "tree", "ring"])
@pytest.mark.parametrize("sizes", [{"unit": 1 << 13}, {"bucket": 0}], ids=["units", "blobs"])
def test_segments_of_hosts_do_not_wait_for_each_other(topology: str, sizes: dict[str, int]) -> None:
    """Sums of different parameters go around four hosts from different starts."""
    step = pu.compose(
        pu.zoo.mlp(batch=8),
        solver=lambda net: pu.solvers.sgd(pu.solvers.clip_by_norm(net, 1.0), lr=0.1),
        devices="host0-3:cpu:0",
        data=4,
        topology=topology,
        **sizes,
    )
    waits: dict[tuple[str, str], set[tuple[str, str]]] = {}
    sent: dict[tuple[str, str, int], tuple[str, str]] = {}
    expected: dict[tuple[str, str, int], tuple[str, str]] = {}
    for host in hosts_of(step):
        graph = lower(step, Options(segments=True, host=host)).graph
        for name, following in graph.successors.items():
            for after in following:
                waits.setdefault((host, after), set()).add((host, name))
        for ends, channels in zip((expected, sent), channels_of(graph, host), strict=True):
            ends |= {(c.source, c.target, c.number): (host, c.op) for c in channels}
    assert expected.keys() == sent.keys() != set()
    for key, arrival in expected.items():
        waits.setdefault(arrival, set()).add(sent[key])
    TopologicalSorter(waits).prepare()  # raises CycleError


def test_lowering_has_a_pass_for_it() -> None:
    step = step_of()
    assert lower(step, Options(host="host1"), after="hosts").graph == part_of(step, "host1")


GOLDEN = (
    """\
a = make: Relu() @ host host0, cpu:0    # float32 2
put/there: Put(a, peer='host1', channel=0) @ host host0, cpu:0 lane outbound
b@0 = back: Arrival(peer='host1', channel=0) @ host host0, cpu:0 lane inbound    # float32 2
signal/work/end: Arrival(peer='host1', channel=1) @ host host0, cpu:0 lane inbound
c = end: Relu(b@0) @ host host0, cpu:0    # float32 2
control put/there -> back
control put/there -> signal/work/end
control signal/work/end -> end
output c""",
    """\
a@1 = there: Arrival(peer='host0', channel=0) @ host host1, cpu:0 lane inbound    # float32 2
b = work: Relu(a@1) @ host host1, cpu:0    # float32 2
put/back: Put(b, peer='host0', channel=0) @ host host1, cpu:0 lane outbound
put/signal/work/end: Put(peer='host0', channel=1) @ host host1, cpu:0 lane outbound
control work -> put/signal/work/end""",
)
