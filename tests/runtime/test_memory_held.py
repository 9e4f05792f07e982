"""The forecast against what malloc has handed out, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

_BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "memory.py"


@pytest.mark.multiprocess
@pytest.mark.skipif(sys.platform != "linux", reason="malloc tells what it holds on Linux")
@pytest.mark.parametrize("scheme", ["one", "accumulate", "1f1b"])
def test_the_forecast_is_what_malloc_has_handed_out(scheme: str) -> None:
    command = [sys.executable, str(_BENCHMARK), "--worker", "forecast", "--nets", "lenet"]
    command += ["--scheme", scheme, "--delayed", "32"]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    answer = json.loads(found.stdout.splitlines()[-1])
    assert answer["forecast"] == pytest.approx(answer["held"], rel=0.02)
