"""Hosts over MPI, started by `mpiexec`."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.runs import metrics
from tests.command import call
from tests.forked import python
from tests.runtime.test_hosts import SCRIPT, step_in
from tests.transports.mpi_ranks import MPIEXEC

pytest.importorskip("mpi4py")
pytestmark = pytest.mark.multiprocess
JOB = ["--net", "mlp", "--data", "fashion-mini", "--iters", "6", "--log-every", "1", "--seed", "0"]


def ran(*words: object, **variables: str) -> tuple[int, str, str]:
    """A Python command as two ranks, with all processes that it starts ended after it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    process = subprocess.Popen(
        [MPIEXEC, "-n", "2", sys.executable, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        cwd=Path(__file__).parents[2],
        env={**os.environ, **shared, "OMP_NUM_THREADS": "1", **variables},
    )
    try:
        out, err = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)
        out, err = process.communicate(timeout=20)
        raise AssertionError(f"the hosts hang: {err}") from None
    return process.returncode, out, err


def test_two_hosts_train_as_one_device() -> None:
    cases = ["lenet/data", "gpt2/data-pipeline"]
    code, out, err = ran("-m", "tests.runtime.host_cases", "mpi", *cases)
    assert code == 0, err
    told = [json.loads(line) for line in out.splitlines()]
    for host in ("host0", "host1"):
        own = [row for row in told if row["host"] == host]
        assert own == [{"case": case, "host": host, "wrong": None} for case in cases]
    assert len(told) == 4


def test_a_job_trains_on_two_hosts(tmp_path: Path) -> None:
    hosts = ["--devices", "host0-1:cpu:0", "--share-cores", "--out", tmp_path / "two"]
    code, _, err = ran("-m", "purine", "train", *JOB, *hosts, PURINE_TRANSPORT="mpi")
    assert code == 0, err
    devices = ["--devices", "cpu:0-1", "--share-cores", "--out", tmp_path / "one"]
    assert call("train", *JOB, *devices).code == 0
    found, expected = metrics(tmp_path / "two"), metrics(tmp_path / "one")
    assert [row["loss"] for row in found if "loss" in row] == pytest.approx(
        [row["loss"] for row in expected if "loss" in row], rel=1e-4
    )


def failing(number: signal.Signals) -> str:
    """The script, in which host 1 sends itself a signal."""
    line = f"if result.iteration == 5 and world.host == 'host1': os.kill(os.getpid(), {number:d})"
    start = "if result.iteration < 5:"
    return SCRIPT.replace(start, f"{line}\n            {start}")


def test_a_host_that_hangs_is_named(tmp_path: Path) -> None:
    code, _, err = ran("-c", failing(signal.SIGSTOP), "mpi", 100_000, step_in(tmp_path))
    assert code != 0
    assert "host 'host1' is lost" in err


def test_a_host_that_dies_ends_the_job(tmp_path: Path) -> None:
    """By `mpiexec`, which may end the others before they notice."""
    code, _, _ = ran("-c", failing(signal.SIGKILL), "mpi", 100_000, step_in(tmp_path))
    assert code != 0


def test_hosts_of_another_launcher_are_refused() -> None:
    script = "from purine.transports.processes import ProcessWorld; ProcessWorld('mpi')"
    done = python("-c", script, env={"RANK": "0", "WORLD_SIZE": "2"})
    assert done.returncode == 1
    assert "start with mpiexec -n 2" in done.stderr
    assert "expected: process 0 of an MPI job of 2" in done.stderr


def test_without_mpi4py_the_extra_is_named() -> None:
    script = "import sys; sys.modules['mpi4py'] = None\n"
    script += "from purine.transports.processes import ProcessWorld; ProcessWorld('mpi')"
    done = python("-c", script)
    assert done.returncode == 1
    assert "pip install 'purine[mpi]'" in done.stderr
