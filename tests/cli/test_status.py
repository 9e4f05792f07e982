"""`purine status`: the hosts of a running job tell what they do and wait for."""

from __future__ import annotations

import json
import os
import select
import signal
from pathlib import Path

import pytest

from purine.job.status import Status, answering, ask
from tests.cli.test_launch import HOSTS, JOB, begun, ended, started
from tests.command import call

LONG = [{"24": "1000000", "6": "200", "1": "50"}.get(word, word) for word in JOB]


def test_a_host_answers_to_a_request(tmp_path: Path) -> None:
    status = Status(7, ("update <- grad <- backward <- host1, iteration 7",), ("host1",))
    with answering(tmp_path, "host0", lambda: status):
        first, second = ask(tmp_path, ["host0", "host1"], seconds=2.5)
    assert first.fresh
    assert first.status == status
    assert first.age is not None
    assert not second.fresh
    assert second.status is None
    assert not (tmp_path / "status" / "request").exists()
    (again,) = ask(tmp_path, ["host0"], seconds=0.1)
    assert not again.fresh
    assert again.status == status


def test_sigusr1_prints_the_status(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    text = ""
    with answering(tmp_path, "host3", lambda: Status(5, ("computes",))):
        os.kill(os.getpid(), signal.SIGUSR1)
        while "host3" not in text:
            select.select([], [], [], 0.02)
            text += capfd.readouterr().err
    assert "status of host3: iteration 5, computes" in text


def test_a_folder_without_a_running_job_is_refused(tmp_path: Path) -> None:
    missing = call("status", tmp_path / "nothing")
    assert missing.code == 2
    assert "there is no run in this folder" in missing.err
    assert call("train", "--net", "mlp", "--iters", "1", "--out", tmp_path / "a").code == 0
    done = call("status", tmp_path / "a")
    assert done.code == 2
    assert "no job is running in this folder" in done.err
    assert not (tmp_path / "a" / "status").exists()


@pytest.mark.multiprocess
@pytest.mark.parametrize("hosts", [1, 2])
def test_all_hosts_of_a_job_answer(hosts: int, tmp_path: Path) -> None:
    out = tmp_path / "run"
    words: list[object] = ["train", *LONG, "--out", out]
    if hosts > 1:
        words = ["launch", "--hosts", hosts, "--", *words, *HOSTS]
    process = started(*words)
    try:
        begun(process, out)
        answer = call("status", out, "--json", "--wait", "30")
        assert answer.code == 0, answer.err
        answers = json.loads(answer.out)["hosts"]
        assert len(answers) == hosts
        for one in answers:
            assert one["status"]["iteration"] > 0
            assert one["status"]["does"]
        table = call("status", out, "--wait", "30")
        assert table.code == 0
        assert all(one["host"] in table.out for one in answers)
    finally:
        os.killpg(process.pid, signal.SIGINT)
        ended(process)
