"""Compiled functions compute what was recorded, and stay in the cache."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from purine.compile.inductor import compile_function


def test_compiled_functions_write_into_their_arguments() -> None:
    def update(weight: Tensor, rate: Tensor, count: Tensor) -> tuple[Tensor, ...]:
        weight.copy_(weight - rate * 0.5 ** count.double() * weight)
        return (weight.sum(),)

    weight, rate, count = torch.randn(6), torch.tensor(0.1), torch.tensor(2)
    wanted = weight - 0.1 * 0.25 * weight
    compiled = compile_function(update, (weight.clone(), rate, count))
    (total,) = compiled(weight, rate, count)
    torch.testing.assert_close(weight, wanted)
    torch.testing.assert_close(total, wanted.sum())


def test_a_compiler_that_fails_is_tried_once_more_with_care(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from torch._inductor import compile_fx

    real, asked = compile_fx.compile_fx, []

    def fails_at_first(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("config_patches"):  # it calls itself without them
            asked.append(kwargs["config_patches"].get("loop_ordering_after_fusion"))
        if len(asked) == 1:
            raise AssertionError
        return real(*args, **kwargs)

    monkeypatch.setattr(compile_fx, "compile_fx", fails_at_first)
    x = torch.arange(6.0)
    made = compile_function(lambda x: (x * 2 + 1,), [x])
    assert asked == [None, False]
    assert made(x)[0].tolist() == [1.0, 3.0, 5.0, 7.0, 9.0, 11.0]


CACHED = """
import sys
import purine
assert "torch._inductor" not in sys.modules
import torch
from torch._dynamo.utils import counters
from purine.compile import inductor

def step(x, weight):
    weight.copy_(weight - x / 4)
    return (x * 3,)

for version in sys.argv[1:]:
    inductor.own_code = lambda: version
    arguments = torch.arange(4.0), torch.ones(4)
    print(inductor.compile_function(step, arguments)(*arguments)[0].tolist(), end=" ")
    print(arguments[1].tolist(), [n for n in counters["inductor"] if n.startswith("fxgraph")])
    counters.clear()
"""


def test_importing_does_not_load_the_compiler_and_results_stay_in_our_cache(
    tmp_path: Path,
) -> None:
    own = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")  # set by what was compiled here before
    inherited = {name: value for name, value in os.environ.items() if name not in own}

    plain = {"TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0"}  # not worth it for two functions

    def said(*versions: str) -> list[str]:
        found = subprocess.run(
            [sys.executable, "-c", CACHED, *versions],
            env=inherited | {"PURINE_CACHE": str(tmp_path), **plain},
            capture_output=True,
            text=True,
            check=True,
        )
        return found.stdout.splitlines()[-len(versions) :]

    values = "[0.0, 3.0, 6.0, 9.0] [1.0, 0.75, 0.5, 0.25]"
    missed, hit = (f"{values} ['fxgraph_cache_{what}']" for what in ("miss", "hit"))
    assert said("ops as they are") == [missed]
    assert any(path.is_file() for path in (tmp_path / "inductor").rglob("*"))
    assert said("ops as they are", "other ops of ours") == [hit, missed]
