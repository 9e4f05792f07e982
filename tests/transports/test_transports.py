"""One suite for all transports."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from purine.errors import ConfigError
from purine.graph import CHANNELS_LAST, Blob
from purine.graph.verify import DTYPES
from purine.lowering.hosts import Channel
from purine.registry.aten import dtype_of
from purine.transports.base import Arrived, Event, Granted, Lost, Transport
from purine.transports.gpi2 import join
from purine.transports.inproc import InprocNetwork
from purine.transports.shm import ShmTransport
from purine.transports.tcp import TcpTransport
from purine.transports.torchdist import TorchTransport
from tests.transports import mpi_ranks
from tests.transports.gpi2 import Processes, needs_gpi2

HOSTS = ("host0", "host1", "host2")
SLOTS = 3
Ends = dict[str, Transport]


def inproc() -> Ends:
    return dict(InprocNetwork(HOSTS).ends)


def shm() -> Ends:
    store = dist.HashStore()
    return {host: ShmTransport(host, store, b"secret") for host in HOSTS}


def tcp() -> Ends:
    store = dist.HashStore()
    return {host: TcpTransport(host, store, b"s" * 32, "127.0.0.1") for host in HOSTS}


def torchdist() -> Ends:
    store, ranks = dist.HashStore(), {host: rank for rank, host in enumerate(HOSTS)}
    groups: dict[str, dist.ProcessGroup] = {}

    def connect(host: str) -> None:
        never = timedelta(days=1)
        groups[host] = dist.ProcessGroupGloo(store, ranks[host], len(HOSTS), never)

    together([lambda host=host: connect(host) for host in HOSTS])
    return {host: TorchTransport(ranks, groups[host]) for host in HOSTS}


PROCESSES: list[Processes] = []
"""The hosts of `gaspi`, which all tests share: a process joins GPI-2 once."""


def gaspi() -> Ends:
    needs_gpi2()
    if not PROCESSES:
        PROCESSES.append(Processes(HOSTS))
    return PROCESSES[0].ends()


def mpi() -> Ends:
    pytest.importorskip("mpi4py")
    return mpi_ranks.transports(HOSTS)


@pytest.fixture(scope="module", autouse=True)
def end_processes() -> Iterator[None]:
    yield
    while PROCESSES:
        PROCESSES.pop().end()


ENGINES: dict[str, Callable[[], Ends]] = {
    "inproc": inproc,
    "shm": shm,
    "tcp": tcp,
    "torchdist": torchdist,
    "gaspi": gaspi,
    "mpi": mpi,
}


def together(calls: Sequence[Callable[[], object]]) -> None:
    """Make calls that wait for each other."""
    threads = [threading.Thread(target=call, daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


@contextmanager
def beside(call: Callable[[], object]) -> Iterator[None]:
    """A call in a thread of its own: a put may wait until the receiver reads."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    yield
    thread.join(60)
    assert not thread.is_alive()


def opened(ends: Ends, blobs: Sequence[Blob | None]) -> Ends:
    """The ends, with a channel for each blob from every host to every other."""
    channels = {
        (one, other): [Channel(one, other, n, f"op{n}", blob) for n, blob in enumerate(blobs)]
        for one in HOSTS
        for other in HOSTS
        if one != other
    }

    def open_end(host: str) -> None:
        peers = [other for other in HOSTS if other != host]
        incoming = [c for peer in peers for c in channels[peer, host]]
        outgoing = [c for peer in peers for c in channels[host, peer]]
        ends[host].open(peers, incoming, outgoing, SLOTS)

    together([lambda host=host: open_end(host) for host in HOSTS])
    return ends


@pytest.fixture(
    params=[
        pytest.param(name, marks=[pytest.mark.multiprocess] if name in ("gaspi", "mpi") else [])
        for name in ENGINES
    ]
)
def make(request: pytest.FixtureRequest) -> Iterator[Callable[[Sequence[Blob | None]], Ends]]:
    started: list[Ends] = []

    def start(blobs: Sequence[Blob | None]) -> Ends:
        started.append(opened(ENGINES[request.param](), blobs))
        return started[-1]

    yield start
    for ends in started:
        together([end.close for end in ends.values()])


def events_of(end: Transport, count: int) -> list[Event]:
    """The next events, which must come."""
    events: list[Event] = []
    for _ in range(200):
        events += end.wait(0.1)
        if len(events) >= count:
            return events
    raise AssertionError(f"only {events}")


def value(blob: Blob, number: int) -> Tensor:
    generator = torch.Generator().manual_seed(number)
    drawn = torch.randn(blob.shape or (), generator=generator, dtype=torch.float64) * 50
    return drawn.to(dtype_of(blob.dtype))


Make = Callable[[Sequence[Blob | None]], Ends]


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_all_dtypes_arrive_as_they_were_sent(make: Make, dtype: str) -> None:
    blob = Blob("x", (3, 5), dtype)
    ends = make([blob])
    sent = value(blob, 0)
    ends["host0"].put("host1", 0, 7, sent)
    assert events_of(ends["host1"], 1) == [Arrived("host0", 0, 7)]
    arrived = ends["host1"].slot("host0", 0, 7)
    assert arrived is not None
    assert arrived.dtype == sent.dtype
    assert torch.equal(arrived, sent)


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (1,), (7, 3), (1 << 20,)])
def test_blobs_of_any_size(make: Make, shape: tuple[int, ...]) -> None:
    blob = Blob("x", shape)
    ends = make([blob, blob])
    sent = value(blob, 1)
    with beside(lambda: ends["host2"].put("host0", 1, 0, sent)):
        assert events_of(ends["host0"], 1) == [Arrived("host2", 1, 0)]
    arrived = ends["host0"].slot("host2", 1, 0)
    assert arrived is not None
    assert arrived.shape == shape
    assert torch.equal(arrived, sent)


def test_a_signal_has_no_value(make: Make) -> None:
    ends = make([None])
    ends["host0"].put("host2", 0, 4, None)
    assert events_of(ends["host2"], 1) == [Arrived("host0", 0, 4)]
    assert ends["host2"].slot("host0", 0, 4) is None


def test_any_strides_are_sent_in_the_layout_of_the_blob(make: Make) -> None:
    plain, last = Blob("x", (2, 3, 4, 5)), Blob("y", (2, 3, 4, 5), layout=CHANNELS_LAST)
    ends = make([plain, last])
    sent = value(plain, 2).to(memory_format=torch.channels_last)
    for number, form in enumerate((torch.contiguous_format, torch.channels_last)):
        ends["host0"].put("host1", number, 0, sent)
        assert events_of(ends["host1"], 1) == [Arrived("host0", number, 0)]
        arrived = ends["host1"].slot("host0", number, 0)
        assert arrived is not None
        assert arrived.is_contiguous(memory_format=form)
        assert torch.equal(arrived, sent)


def test_an_expanded_value_is_sent_whole(make: Make) -> None:
    """One of a single element is contiguous, with a stride of 0."""
    ends = make([Blob("x", (1,)), Blob("y", (3,))])
    for number, size in enumerate((1, 3)):
        ends["host0"].put("host1", number, 0, torch.tensor(7.0).expand(size))
        assert events_of(ends["host1"], 1) == [Arrived("host0", number, 0)]
        arrived = ends["host1"].slot("host0", number, 0)
        assert arrived is not None
        assert arrived.tolist() == [7.0] * size


def test_a_lazy_conjugate_or_negative_is_sent_as_it_reads(make: Make) -> None:
    """Both have the memory of another value, and a bit that says so."""
    ends = make([Blob("x", (2,), "complex64"), Blob("y", (1,))])
    complexes = torch.tensor([1 + 2j, 3 - 4j]).conj()
    negative = torch.tensor([1 + 2j]).conj().imag
    assert complexes.is_conj()
    assert negative.is_neg()
    for number, sent in enumerate((complexes, negative)):
        ends["host0"].put("host1", number, 0, sent)
        assert events_of(ends["host1"], 1) == [Arrived("host0", number, 0)]
        arrived = ends["host1"].slot("host0", number, 0)
        assert arrived is not None
        assert arrived.tolist() == sent.tolist()


@pytest.mark.parametrize("count", [1 << 14, 1 << 16, (1 << 16) + 1, 1 << 18, (1 << 18) + 1])
def test_many_puts_of_mixed_sizes_arrive_whole(make: Make, count: int) -> None:
    """Of sizes at which engines change how they send: more are under way than they hold at once."""
    blobs = [Blob("x", (count,)), Blob("y", (3,)), Blob("z", ())]
    ends = make(blobs)
    rounds = 12

    def send() -> None:
        for version in range(rounds):
            assert granted.acquire(timeout=60)
            for channel, blob in enumerate(blobs):
                sent = torch.full(blob.shape or (), float(10 * version + channel))
                ends["host0"].put("host1", channel, version, sent)

    granted = threading.Semaphore(SLOTS)
    here: dict[int, int] = {}
    with beside(send):
        for version in range(rounds):
            while here.get(version, 0) < len(blobs):
                for event in events_of(ends["host1"], 1):
                    assert isinstance(event, Arrived)
                    slot = ends["host1"].slot("host0", event.channel, event.version)
                    assert slot is not None
                    assert (slot == 10 * event.version + event.channel).all()
                    here[event.version] = here.get(event.version, 0) + 1
            ends["host1"].credit("host0", version + 1)
            granted.release()
    assert here == dict.fromkeys(range(rounds), len(blobs))


def test_more_puts_than_a_pipe_holds_wait_for_the_receiver() -> None:
    store = dist.HashStore()
    ends: Ends = opened({host: ShmTransport(host, store, b"secret") for host in HOSTS}, [None])
    count = 3 * (1 << 16) // 16
    seen: list[int] = []

    def send() -> None:
        for version in range(count):
            ends["host0"].put("host1", 0, version, None)

    with beside(send):
        while len(seen) < count:
            for event in events_of(ends["host1"], 1):
                assert isinstance(event, Arrived)
                seen.append(event.version)
    assert seen == list(range(count))
    together([end.close for end in ends.values()])


def test_a_put_that_waits_ends_when_its_host_closes() -> None:
    store = dist.HashStore()
    ends: Ends = opened({host: ShmTransport(host, store, b"secret") for host in HOSTS}, [None])

    def send() -> None:
        for version in range(2 * (1 << 16) // 16):
            ends["host0"].put("host1", 0, version, None)

    with beside(send):
        ends["host0"].close()
    together([end.close for end in ends.values()])


def test_versions_have_slots_of_their_own(make: Make) -> None:
    blob = Blob("x", (4,))
    ends = make([blob])
    sent = {version: value(blob, version) for version in range(5, 5 + SLOTS)}
    for version, tensor in sent.items():
        ends["host1"].put("host2", 0, version, tensor)
    arrived = events_of(ends["host2"], SLOTS)
    assert sorted(event.version for event in arrived if isinstance(event, Arrived)) == list(sent)
    for version, tensor in sent.items():
        slot = ends["host2"].slot("host1", 0, version)
        assert slot is not None
        assert torch.equal(slot, tensor)


@pytest.mark.parametrize("count", [1 << 18, 1 << 20])
def test_the_value_may_change_after_a_put(make: Make, count: int) -> None:
    blob = Blob("x", (count,))
    ends = make([blob])
    tensor = torch.ones(count)

    def put_and_change() -> None:
        ends["host0"].put("host1", 0, 0, tensor)
        tensor.zero_()

    with beside(put_and_change):
        events_of(ends["host1"], 1)
    slot = ends["host1"].slot("host0", 0, 0)
    assert slot is not None
    assert slot.sum() == count


def test_credits_arrive_and_the_newest_counts(make: Make) -> None:
    ends = make([])
    for completed in range(1, 50):
        ends["host0"].credit("host1", completed)
    seen = 0
    for _ in range(200):
        for event in ends["host1"].wait(0.1):
            assert isinstance(event, Granted)
            assert event.peer == "host0"
            assert event.completed > seen
            seen = event.completed
        if seen == 49:
            return
    raise AssertionError(f"only {seen}")


def test_all_hosts_send_to_all_at_once(make: Make) -> None:
    blobs = [Blob("x", (1 << 14,)), Blob("y", (3,))]
    ends = make(blobs)
    rounds = 20

    def work(host: str) -> None:
        number = HOSTS.index(host)
        peers = [peer for peer in HOSTS if peer != host]
        for version in range(rounds):
            for peer in peers:
                for channel, blob in enumerate(blobs):
                    ends[host].put(peer, channel, version, value(blob, 100 * number + version))
            for event in events_of(ends[host], len(peers) * len(blobs)):
                assert isinstance(event, Arrived)
                source = 100 * HOSTS.index(event.peer) + event.version
                slot = ends[host].slot(event.peer, event.channel, event.version)
                assert slot is not None
                assert torch.equal(slot, value(blobs[event.channel], source))
            barrier.wait(60)

    barrier = threading.Barrier(len(HOSTS))
    failures: list[BaseException] = []

    def noted(host: str) -> None:
        try:
            work(host)
        except BaseException as error:
            failures.append(error)
            barrier.abort()

    together([lambda host=host: noted(host) for host in HOSTS])
    assert not failures, failures


def test_a_wait_ends_when_woken_or_in_time(make: Make) -> None:
    ends = make([])
    assert ends["host0"].wait(0.01) == []
    threading.Timer(0.05, ends["host0"].wake).start()
    assert ends["host0"].wait(30.0) == []


def test_a_peer_that_is_gone_is_reported_after_what_it_sent(make: Make) -> None:
    ends = make([Blob("x", (3,))])
    ends["host0"].put("host1", 0, 0, torch.ones(3))
    closing = threading.Thread(target=ends["host0"].close, daemon=True)
    closing.start()
    first, second = events_of(ends["host1"], 2)
    assert first == Arrived("host0", 0, 0)
    assert isinstance(second, Lost)
    assert second.peer == "host0"


def test_strangers_are_sent_away() -> None:
    """One with a wrong secret connects before the hosts do, and is not in their way."""
    store = dist.HashStore()
    ends: Ends = {host: ShmTransport(host, store, b"secret") for host in HOSTS}
    sent_away = threading.Event()

    def try_to_connect() -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
            stranger.connect(store.get("shm/host0").decode())
            stranger.send(b"wrong!host1")
            assert stranger.recv(16) == b""
        sent_away.set()

    def open_later(host: str) -> None:
        if host != "host0":
            assert sent_away.wait(60)
        ends[host].open([other for other in HOSTS if other != host], [], [], SLOTS)

    together([try_to_connect, *(lambda host=host: open_later(host) for host in HOSTS)])
    ends["host2"].credit("host0", 1)
    assert events_of(ends["host0"], 1) == [Granted("host2", 1)]
    together([end.close for end in ends.values()])


@pytest.mark.multiprocess
def test_two_jobs_over_gpi2_run_on_one_machine() -> None:
    blob = Blob("x", (4,))
    first = opened(gaspi(), [blob])
    second = Processes(HOSTS)
    try:
        jobs = [first, opened(second.ends(), [blob])]
        for number, ends in enumerate(jobs):
            ends["host0"].put("host1", 0, 0, value(blob, number))
        for number, ends in enumerate(jobs):
            assert events_of(ends["host1"], 1) == [Arrived("host0", 0, 0)]
            arrived = ends["host1"].slot("host0", 0, 0)
            assert arrived is not None
            assert torch.equal(arrived, value(blob, number))
            together([end.close for end in ends.values()])
    finally:
        second.end()


def test_a_missing_gpi2_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PURINE_GPI2", "/nowhere/libGPI2.so")
    with pytest.raises(ConfigError, match="needs the library GPI-2") as caught:
        join(dist.HashStore(), 0, 2)
    assert "/nowhere/libGPI2.so" in str(caught.value)
    assert "install GPI-2" in str(caught.value)
