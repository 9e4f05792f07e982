"""`purine launch`: jobs on several hosts, which are processes of this machine."""

from __future__ import annotations

import os
import re
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from purine.runtime import checkpoint
from purine.trace.trace import Trace, puts_of
from tests.cli.runs import metrics, same_bits
from tests.command import call
from tests.forked import Child, start

pytestmark = pytest.mark.multiprocess

JOB = ["--net", "mlp", "--data", "fashion-mini", "--iters", "24", "--save-every", "6"]
JOB += ["--log-every", "1", "--seed", "0", "--lr", "0.05"]
HOSTS = ["--devices", "host0-1:cpu:0", "--share-cores"]


def started(*words: object) -> Child:
    """A command that leads a group of processes, so that a signal reaches the hosts too.

    Its hosts are forked.
    """
    return start("-m", "tests.cli.forking", *map(str, words), session=True)


def ended(process: Child) -> tuple[int, str, str]:
    return process.ended(180)


def launched(*words: object, transport: str = "shm") -> tuple[int, str, str]:
    return ended(started("launch", "--hosts", 2, "--transport", transport, "--", *words))


@contextmanager
def unforked(*words: object, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """A command of Python whose hosts start as those of a user do."""
    with subprocess.Popen(
        [sys.executable, "-m", *map(str, words)],
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        cwd=Path(__file__).parents[2],
    ) as process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def begun(process: Child | subprocess.Popen[str], run: Path) -> list[int]:
    """The hosts of a command, when their run has its first checkpoint."""

    def runs() -> bool:
        return process.runs if isinstance(process, Child) else process.poll() is None

    while runs() and not list(run.glob("checkpoints/0*")):
        select.select([], [], [], 0.05)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    return [*map(int, children.split())]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "two"
    code, _, err = launched("train", *JOB, *HOSTS, "--out", folder)
    assert code == 0, err
    return folder


def test_two_hosts_train_as_two_devices_do(undisturbed: Path, tmp_path: Path) -> None:
    devices = ["--devices", "cpu:0-1", "--share-cores"]
    assert call("train", *JOB, *devices, "--out", tmp_path / "one").code == 0
    expected, found = metrics(tmp_path / "one"), metrics(undisturbed)
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one["iteration"] == other["iteration"]
        for key in ("loss", "test_loss"):
            assert (key in one) == (key in other)
            if key in one:
                assert one[key] == pytest.approx(other[key], rel=1e-4)


def test_a_transport_changes_no_bit(undisturbed: Path, tmp_path: Path) -> None:
    """Nor do hosts that are no forks of one process."""
    out = tmp_path / "gloo"
    words = ["launch", "--hosts", 2, "--transport", "torchdist", "--", "train", *JOB, *HOSTS]
    with unforked("purine", *words, "--out", out) as process:
        _, err = process.communicate(timeout=180)
        assert process.returncode == 0, err
    assert same_bits(out, undisturbed)


def test_an_interrupted_run_stops_on_all_hosts_at_one_iteration(tmp_path: Path) -> None:
    out = tmp_path / "interrupted"
    job = [word if word != "24" else "100000" for word in JOB]
    process = started("launch", "--hosts", 2, "--", "train", *job, *HOSTS, "--out", out)
    begun(process, out)
    os.killpg(process.pid, signal.SIGINT)
    code, text, err = ended(process)
    assert code == 128 + signal.SIGINT, err
    assert "to go on" in text
    stopped = checkpoint.load(out).iteration
    assert metrics(out)[-1]["iteration"] == stopped > 0
    code, text, err = launched("train", "--resume", "--out", out, "--iters", 100_000, "--dry-run")
    assert code == 0, err


LONGER = [{"24": "800", "6": "100", "1": "100"}.get(word, word) for word in JOB]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A longer run that nothing disturbs."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    code, _, err = launched("train", *LONGER, *HOSTS, "--out", folder)
    assert code == 0, err
    return folder


def test_a_run_with_a_killed_host_goes_on_to_the_same_bits(whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "killed"
    process = started("launch", "--hosts", 2, "--", "train", *LONGER, *HOSTS, "--out", out)
    os.kill(begun(process, out)[1], signal.SIGKILL)
    code, _, err = ended(process)
    assert code in (2, 128 + signal.SIGKILL)
    assert "host 'host1' is lost" in err
    assert checkpoint.load(out).iteration < 800
    code, _, err = launched("train", "--resume", "--out", out)
    assert code == 0, err
    assert same_bits(out, whole)


def test_torchrun_starts_a_run_with_a_killed_host_again(whole: Path, tmp_path: Path) -> None:
    """With the command of the first start: the run goes on from its checkpoint by itself."""
    out = tmp_path / "again"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = ["--nproc-per-node=2", "--max-restarts=1", f"--master-port={port}", "-m", "purine"]
    variables = {"PURINE_TRANSPORT": "tcp", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    words += ["train", *LONGER, *HOSTS, "--out", str(out)]
    with unforked("torch.distributed.run", *words, **variables) as process:
        os.kill(begun(process, out)[0], signal.SIGKILL)
        _, err = process.communicate(timeout=180)
        assert process.returncode == 0, err
    assert same_bits(out, whole)


@pytest.mark.parametrize(
    ("transport", "number", "victim"),
    [
        ("shm", signal.SIGKILL, 1),
        ("shm", signal.SIGSTOP, 0),
        ("tcp", signal.SIGKILL, 0),
        ("tcp", signal.SIGSTOP, 1),
    ],
)
def test_all_hosts_end_within_ten_seconds_of_a_loss(
    transport: str, number: signal.Signals, victim: int, tmp_path: Path
) -> None:
    job = [{"24": "1000000", "6": "100", "1": "100"}.get(word, word) for word in JOB]
    words = ["--hosts", 2, "--transport", transport, "--", "train", *job, *HOSTS]
    process = started("launch", *words, "--out", tmp_path / "run")
    children = begun(process, tmp_path / "run")
    other = os.pidfd_open(children[1 - victim])
    os.kill(children[victim], number)
    try:
        assert select.select([other], [], [], 10.0)[0], "what is promised"
    finally:
        os.close(other)
        code, _, err = ended(process)
    assert code in (2, 128 + signal.SIGKILL)
    assert f"host 'host{victim}' is lost" in err
    assert re.search(r"expected: blob '.+'( of iteration \d+)?, for which op '.+' waits", err)
    assert "Traceback" not in err


def test_one_trace_has_the_events_of_all_hosts(tmp_path: Path) -> None:
    out = tmp_path / "traced"
    job = [word if word != "24" else "8" for word in JOB]
    code, _, err = launched("train", *job, *HOSTS, "--trace", "--out", out, transport="tcp")
    assert code == 0, err
    assert [path.name for path in out.glob("trace*")] == ["trace.json"]
    trace = Trace.load(out / "trace.json")
    assert trace.iterations == tuple(range(8))
    assert {event.host for event in trace.events} == {"host0", "host1"}
    here, far = trace.clocks
    assert (here.host, here.offset, here.uncertainty) == ("host0", 0, 0)
    assert far.host == "host1"
    # Processes of one machine have one clock, so the true offset is none.
    assert abs(far.offset) <= far.uncertainty
    assert abs(far.offset + far.drift) <= far.uncertainty
    put_of = puts_of(trace)
    assert {trace.events[arrival].host for arrival in put_of} == {"host0", "host1"}
    assert len(put_of) == sum(event.kind == "Arrival" for event in trace.events)
    for arrival, put in put_of.items():
        assert trace.events[arrival].end + far.uncertainty >= trace.events[put].start
    shown = call("trace", out).out
    assert "transfers between hosts: " in shown
    for host, other in (("host0", "host1"), ("host1", "host0")):
        assert re.search(rf"{host} cpu:0 waited .* a step \(.*%\): .* for {other} \(", shown)
    assert re.search(r"known to within\n  host1 +[+-]\d", shown)


def test_a_number_of_hosts_that_the_devices_do_not_name_is_refused(tmp_path: Path) -> None:
    called = call("train", *JOB, *HOSTS, "--out", tmp_path / "alone")
    assert called.code == 2
    assert "the devices are those of 2 hosts, and 1 were started" in called.err
    assert "purine launch --hosts 2" in called.err
    assert not (tmp_path / "alone").exists()


def test_wrong_options_of_launch_are_named() -> None:
    for words, message in (
        (["--hosts", 0, "--", "train"], "1 to 64 hosts"),
        (["--transport", "pigeon", "--", "train"], "torchdist"),
    ):
        called = call("launch", *map(str, words))
        assert called.code == 2
        assert message in called.err
        assert "Traceback" not in called.err
