"""A run that is killed again and again ends with the bits of one that was left alone."""

from __future__ import annotations

import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from purine.graph import save_yaml
from purine.runtime import checkpoint
from purine.zoo import mlp
from tests.cli.runs import metrics, same_bits

KILLS = 24
SAVE_EVERY = 3
SECONDS = (0.05, 0.8)
"""When a run is killed; on a busy machine later, so that some runs make progress."""


class Forker:
    """The program `tests/cli/forker.py`, told what to run and when to kill it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def run(self, arguments: list[str], *, kill_after: float | None) -> int:
        """Run a command line, for so many seconds only; returns the status of the child."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(arguments), file=self.process.stdin, flush=True)
        child = int(self.process.stdout.readline())
        if kill_after is not None:
            ended, _, _ = select.select([self.process.stdout], [], [], kill_after)
            if not ended:
                os.kill(child, signal.SIGKILL)
        return int(self.process.stdout.readline())


@contextmanager
def forker() -> Iterator[Forker]:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.cli.forker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    ) as process:
        yield Forker(process)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait() == 0


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.skipif(
    torch.version.cuda is not None, reason="a CUDA build of torch cannot differentiate after a fork"
)
def test_killed_runs_lose_nothing(tmp_path: Path) -> None:
    net, out, whole = tmp_path / "net.yaml", tmp_path / "out", tmp_path / "whole"
    save_yaml(mlp(8, hidden=(32,)), net)
    options = ["--net", str(net), "--save-every", str(SAVE_EVERY), "--log-every", "1"]
    options += ["--iters", "100000", "--test-every", "1000000", "--threads", "1"]
    chance = random.Random(20)
    reached = killed = with_progress = 0
    with forker() as programs:
        for name in ("first", "second"):  # the first one waits for imports
            begin = time.monotonic()
            short = ["train", *options, "--iters", str(SAVE_EVERY), "--out", str(tmp_path / name)]
            assert programs.run(short, kill_after=None) == 0
        latest = max(SECONDS[1], 2 * (time.monotonic() - begin))
        while killed < KILLS:
            begun = (out / "config.yaml").exists()
            arguments = ["--resume"] if begun else options
            arguments = ["train", *arguments, "--out", str(out)]
            status = programs.run(arguments, kill_after=chance.uniform(SECONDS[0], latest))
            assert os.WIFSIGNALED(status), f"the run ended by itself with {status}"
            assert os.WTERMSIG(status) == signal.SIGKILL
            killed += 1
            if checkpoint.latest(out) is not None:
                now = checkpoint.load(out).iteration
                assert now % SAVE_EVERY == 0
                assert now >= reached
                with_progress += now > reached
                reached = now
        assert with_progress > KILLS // 4
        last = ["--iters", str(reached + 2 * SAVE_EVERY + 1)]
        shorten(out, last[1])
        assert programs.run(["train", "--resume", "--out", str(out)], kill_after=None) == 0
        assert programs.run(["train", *options, *last, "--out", str(whole)], kill_after=None) == 0
    assert same_bits(whole, out)
    assert metrics(whole) == metrics(out)


def shorten(run: Path, iterations: str) -> None:
    """Let the run end sooner than it was begun to, which makes no difference at a fixed rate."""
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("iters: 100000\n", f"iters: {iterations}\n"))
