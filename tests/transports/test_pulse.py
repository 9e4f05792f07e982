"""Signs of life through the store, and what hosts say of one that is lost before the first step."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from time import monotonic

import pytest

from purine.transports.pulse import SILENCE, Pulse
from tests.forked import start_hosts

HOSTS = ("host0", "host1", "host2")


class Texts:
    """A store; `fails` lets its calls fail as those of a store whose host has ended."""

    def __init__(self) -> None:
        self.texts = dict.fromkeys(HOSTS, b"0")
        self.fails = False

    def set(self, key: str, value: str) -> None:
        self.texts[key] = value.encode()

    def multi_get(self, keys: list[str]) -> Sequence[bytes]:
        if self.fails:
            raise RuntimeError("failed to recv,\n got 0 bytes")
        return [self.texts[key] for key in keys]


class Job:
    """The pulses of three hosts, which beat when they are told to."""

    def __init__(self) -> None:
        self.store, self.time = Texts(), 0.0
        self.pulses = {
            host: Pulse(
                self.store,
                host,
                [peer for peer in HOSTS if peer != host],
                keeper="host0",
                clock=lambda: self.time,
            )
            for host in HOSTS
        }

    def beat(self, seconds: int, *hosts: str) -> None:
        """Let hosts beat every second for some seconds."""
        for _ in range(seconds):
            self.time += 1.0
            for host in hosts:
                self.pulses[host].beat()


def test_a_host_that_beats_is_never_lost() -> None:
    job = Job()
    job.beat(100, *HOSTS)
    assert not any(pulse.losses() for pulse in job.pulses.values())


def test_a_host_that_is_silent_is_lost_to_all_others_and_back_when_it_beats() -> None:
    job = Job()
    job.beat(3, *HOSTS)
    job.beat(int(SILENCE), "host0", "host2")
    assert not any(pulse.losses() for pulse in job.pulses.values())
    job.beat(2, "host0", "host2")  # host0 saw its last sign of life a second later
    for host, seconds in (("host0", 7), ("host2", 8)):
        assert dict(job.pulses[host].losses()) == {
            "host1": f"it has sent no heartbeat for {seconds} s"
        }
    job.beat(2, *HOSTS)
    assert not job.pulses["host0"].losses()


def test_hosts_that_are_all_stopped_and_go_on_are_not_lost() -> None:
    job = Job()
    job.beat(3, *HOSTS)
    job.time += 100.0
    for host in HOSTS:
        job.pulses[host].beat()
        assert not job.pulses[host].losses()


def test_the_host_of_the_store_is_lost_where_the_store_does_not_answer() -> None:
    job = Job()
    job.beat(3, *HOSTS)
    job.time += SILENCE + 1.0
    assert dict(job.pulses["host1"].losses()) == {"host0": "it has sent no heartbeat for 7 s"}
    assert not job.pulses["host0"].losses()


def test_the_host_of_the_store_is_lost_where_the_store_is_gone() -> None:
    job = Job()
    job.store.fails = True
    pulse = job.pulses["host1"]
    pulse._run()
    assert dict(pulse.losses()) == {"host0": "failed to recv, got 0 bytes"}
    pulse.close()  # there is nobody to tell


def test_a_host_that_has_left_is_known_and_not_lost() -> None:
    job = Job()
    job.beat(3, *HOSTS)
    job.pulses["host1"].close()
    job.beat(20, "host0", "host2")
    assert not job.pulses["host0"].losses()
    assert list(job.pulses["host0"].ended) == ["host1"]


def test_a_round_is_over_when_each_host_that_is_alive_has_looked() -> None:
    job = Job()
    job.beat(3, *HOSTS)
    job.pulses["host1"].close()
    job.beat(1, "host0")
    over = job.pulses["host0"].round()
    assert not over()
    job.beat(1, "host2", "host0")
    assert not over()  # host2 has written its number, and may not have read the others
    job.beat(1, "host2", "host0")
    assert over()
    assert list(job.pulses["host2"].ended) == ["host1"]


SCRIPT = """
import os, signal, sys
from purine.errors import HostLostError
from purine.transports import pulse
from purine.transports.processes import ProcessWorld

pulse.SILENCE = 2.0  # less to wait for
world = ProcessWorld("tcp")
victim, end = sys.argv[1:]
try:
    world.barrier()
    if world.host == victim:
        if end == "leave":
            world.close()
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL if end == "kill" else signal.SIGSTOP)
    world.compare({"seed": "0"})
except HostLostError as error:
    print(error, file=sys.stderr, flush=True)
    os._exit(2)
"""


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("victim", "end"), [(0, "kill"), (1, "kill"), (0, "stop"), (1, "stop"), (1, "leave")]
)
def test_a_host_that_is_lost_before_the_first_step_is_named_within_ten_seconds(
    victim: int, end: str
) -> None:
    processes = start_hosts("-c", SCRIPT, f"host{victim}", end, count=3)
    try:
        lost = processes.pop(victim)
        if end == "kill":
            assert lost.wait() == -signal.SIGKILL
        elif end == "leave":
            assert lost.wait() == 0
        begun = monotonic()
        for process in processes:
            code, _, text = process.ended(120)
            assert code == 2, text
            assert f"host 'host{victim}' is lost" in text
            assert re.search("blob '[a-z]+', for which op '(barrier|compare)' waits", text), text
        if end != "stop":  # when it stopped is not known here
            assert monotonic() - begun < 10
    finally:
        for process in (lost, *processes):
            process.kill()
