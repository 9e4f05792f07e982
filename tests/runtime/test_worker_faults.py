"""A few deaths and joins during a job over host processes; `scripts/worker_faults.py` has more."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.parametrize(("scheme", "transport"), [("downpour", "shm"), ("easgd", "tcp")])
def test_a_job_ends_with_all_pushes_though_workers_die_and_join(
    scheme: str, transport: str
) -> None:
    command = [sys.executable, "scripts/worker_faults.py", "--net", "mlp", "--band", "0"]
    command += ["--deaths", "3", "--joins", "2", "--epochs", "1.5", "--patience", "60"]
    done = subprocess.run(
        [*command, "--scheme", scheme, "--transport", transport],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == 0, told["wrong"]
    assert (told["deaths"], told["joins"], told["wrong"]) == (3, 2, [])
    assert told["lives"] >= 4 + 2
