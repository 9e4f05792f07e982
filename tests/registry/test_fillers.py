from __future__ import annotations

import math

import pytest
import torch

from purine.errors import KindError
from purine.graph import Attribute, Blob, Filler, State
from purine.registry.fillers import fill, filler_problems


def drawn(
    kind: str, shape: tuple[int, ...] = (400, 300), dtype: str = "float64", **settings: Attribute
) -> torch.Tensor:
    return fill(Filler(kind, settings), shape, dtype, seed=0, name="w")


def test_constants() -> None:
    assert drawn("constant", (2,)).tolist() == [0.0, 0.0]
    assert drawn("constant", (), value=2.5).item() == 2.5
    assert drawn("constant", (), "int64", value=2**62 + 1).item() == 2**62 + 1


def test_uniform_and_gaussian() -> None:
    value = drawn("uniform", min=-2.0, max=4.0)
    assert value.min() >= -2
    assert value.max() < 4
    assert value.mean().item() == pytest.approx(1, abs=0.05)
    value = drawn("gaussian", mean=3.0, std=0.5)
    assert value.mean().item() == pytest.approx(3, abs=0.01)
    assert value.std().item() == pytest.approx(0.5, rel=0.02)


@pytest.mark.parametrize(
    ("variance", "shape", "fan"),
    [
        ("fan_in", (400, 300), 300),
        ("fan_out", (400, 300), 400),
        ("average", (400, 300), 350),
        ("fan_in", (64, 32, 5, 5), 800),
        ("fan_out", (64, 32, 5, 5), 1600),
        ("fan_in", (50000,), 1),
        ("fan_out", (50000,), 50000),
    ],
)
def test_xavier_and_msra_scale_with_the_fan(
    variance: str, shape: tuple[int, ...], fan: int
) -> None:
    value = drawn("xavier", shape, variance=variance)
    limit = math.sqrt(3 / fan)
    assert value.abs().max().item() == pytest.approx(limit, rel=0.01)
    assert value.std().item() == pytest.approx(math.sqrt(1 / fan), rel=0.02)
    value = drawn("msra", shape, variance=variance)
    assert value.std().item() == pytest.approx(math.sqrt(2 / fan), rel=0.02)


@pytest.mark.parametrize("factor", [2, 3, 4])
def test_bilinear_kernels_interpolate(factor: int) -> None:
    size = 2 * factor - factor % 2
    weight = drawn("bilinear", (1, 1, size, size))
    image = torch.ones(1, 1, 6, 6, dtype=torch.float64)
    pad = math.ceil((factor - 1) / 2)
    grown = torch.nn.functional.conv_transpose2d(image, weight, stride=factor, padding=pad)
    inside = grown[:, :, factor:-factor, factor:-factor]
    torch.testing.assert_close(inside, torch.ones_like(inside))


def test_a_value_depends_on_seed_and_name_alone() -> None:
    filler = Filler("xavier")
    first = fill(filler, (4, 5), "float64", seed=1, name="a")
    fill(filler, (9, 9), "float64", seed=1, name="b")
    torch.manual_seed(5)
    assert torch.equal(first, fill(filler, (4, 5), "float64", seed=1, name="a"))
    assert not torch.equal(first, fill(filler, (4, 5), "float64", seed=2, name="a"))
    assert not torch.equal(first, fill(filler, (4, 5), "float64", seed=1, name="b"))


def test_filling_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    drawn("gaussian")
    assert torch.equal(torch.rand(1), expected)


@pytest.mark.parametrize("kind", ["uniform", "gaussian", "xavier", "msra"])
def test_nets_of_different_dtypes_start_alike(kind: str) -> None:
    assert torch.equal(drawn(kind, dtype="float32"), drawn(kind).float())


@pytest.mark.parametrize(
    ("filler", "shape", "dtype", "expected"),
    [
        (Filler("xavir"), (2,), "float32", "one of bilinear, constant, "),
        (Filler("xavier", {"std": 1.0}), (2,), "float32", "settings of xavier: variance"),
        (Filler("bilinear", {"std": 1.0}), (1, 1, 2, 2), "float32", "settings of bilinear: name"),
        (Filler("gaussian", {"std": "big"}), (2,), "float32", "std to be a number"),
        (Filler("msra", {"variance": "in"}), (2,), "float32", "variance to be one of fan_in, "),
        (Filler("gaussian"), (2,), "int64", "a constant filler for a blob of int64"),
        (Filler("constant", {"value": 0.5}), (2,), "int64", "a whole number"),
        (Filler("uniform", {"min": 2.0}), (2,), "float32", "min to be at most max"),
        (Filler("gaussian", {"std": -1.0}), (2,), "float32", "std to be at least 0"),
        (Filler("bilinear"), (1, 1, 2, 3), "float32", "a blob of 4 dimensions"),
    ],
)
def test_mistakes(filler: Filler, shape: tuple[int, ...], dtype: str, expected: str) -> None:
    state = State("w", "w", filler, where="net.yaml:4")
    (problem,) = filler_problems(state, Blob("w", shape, dtype))
    assert str(problem.expected).startswith(expected)
    assert (problem.blob, problem.where) == ("w", "net.yaml:4")
    assert problem.remedy
    with pytest.raises(KindError, match="'w'"):
        fill(filler, shape, dtype, seed=0, name="w")


def test_good_fillers_have_no_problems() -> None:
    for filler in (Filler(), Filler("msra", {"variance": "average"}), Filler("uniform")):
        assert not list(filler_problems(State("w", "w", filler), Blob("w", (2, 3))))
    assert not list(filler_problems(State("n", "n"), Blob("n", (), "int64")))
