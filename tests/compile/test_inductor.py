"""What is compiled computes what was recorded; scalars are computed once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from purine.compile import inductor
from purine.compile.inductor import compile_function, scalars_first


def decayed(weight: Tensor, bias: Tensor, rate: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    one = weight - rate * (1.0 - 0.9 ** (count + 1).double()) * weight
    two = bias - rate * (1.0 - 0.9 ** (count + 1).double()) * bias
    return one, two.sum() * rate


def arguments() -> tuple[Tensor, ...]:
    return torch.randn(3, 4), torch.randn(5), torch.tensor(0.1).double(), torch.tensor(7)


def test_scalars_are_taken_out_and_computed_once() -> None:
    given = arguments()
    wanted = decayed(*given)
    recorded = make_fx(decayed, tracing_mode="fake")(*given)
    first = scalars_first(recorded)
    powers = [node for node in first.graph.nodes if "pow" in str(node.target)]
    assert len(powers) == 1
    assert not any("pow" in str(node.target) for node in recorded.graph.nodes)
    scalars = first(*given)
    assert all(value.dim() == 0 for value in scalars)
    torch.testing.assert_close(recorded(*given, *scalars), wanted)


def test_a_function_without_scalars_is_left_alone() -> None:
    given = torch.randn(3), torch.randn(3)
    recorded = make_fx(lambda x, y: (x + y,), tracing_mode="fake")(*given)
    assert scalars_first(recorded)(*given) == ()
    torch.testing.assert_close(recorded(*given), (given[0] + given[1],))


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
    inductor._our_ops = lambda: version
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

    def said(*versions: str) -> list[str]:
        found = subprocess.run(
            [sys.executable, "-c", CACHED, *versions],
            env=inherited | {"PURINE_CACHE": str(tmp_path)},
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


@pytest.mark.parametrize("file", ["gpu_op.py", "add_at.py"])
def test_versions_of_our_own_ops_differ_by_what_is_written_in_their_files(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inductor, "__file__", str(tmp_path / "inductor.py"))
    tags = []
    for text in ("one", "other", "one"):
        (tmp_path / file).write_text(text, encoding="utf-8")
        inductor._our_ops.cache_clear()
        tags.append(inductor._our_ops())
    inductor._our_ops.cache_clear()
    assert tags[0] != tags[1]
    assert tags[0] == tags[2]
