"""A few deaths and joins during a job over host processes; `scripts/worker_faults.py` has more."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def test_a_job_ends_with_all_pushes_though_workers_die_and_join() -> None:
    command = [sys.executable, "scripts/worker_faults.py", "--net", "mlp", "--band", "0"]
    command += ["--deaths", "2", "--joins", "1", "--epochs", "1", "--patience", "60"]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == 0, told["wrong"]
    assert (told["deaths"], told["joins"], told["wrong"]) == (2, 1, [])
    assert told["lives"] >= 4
