"""Definitions in the manner of well-known public ones: each is imported, and takes a step."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from purine.analysis.infer import check
from purine.autodiff import backward, losses_of
from purine.graph import Graph, from_yaml, to_yaml
from purine.importers.caffe import CaffeSolver, apply_solver, from_caffe
from purine.importers.caffe.definition import is_solver, read_solver
from purine.registry.aten import dtype_of
from purine.solvers import Fixed, MultiStep, Poly, Step
from tests.command import call
from tests.importers.mutations import SAMPLES, SIZES
from tests.reference import following, run, start

CANCELLED = ("ip2_b", "feat_b")  # only the difference of two of them counts
SOLVER = CaffeSolver(type="SGD", rate=Fixed(0.01), momentum=0.9, weight_decay=5e-4)


def place(name: str) -> Path:
    return SAMPLES / f"{name}.prototxt"


def fed(graph: Graph) -> dict[str, Tensor]:
    """Values for the inputs of a graph and for what its sources give."""
    generator = torch.Generator().manual_seed(0)
    sources = [name for op in graph.ops.values() if op.kind == "Data" for name in op.outputs]
    values = {}
    for name in (*graph.inputs, *sources):
        shape, dtype = graph.blobs[name].shape, graph.blobs[name].dtype
        assert shape is not None
        if dtype == "int64" or name in ("cont", "sim"):
            values[name] = torch.randint(2, shape, generator=generator)
        else:
            values[name] = torch.rand(shape, generator=generator)
        values[name] = values[name].to(dtype_of(dtype))
    return values


def test_every_sample_has_sizes() -> None:
    files = {path.stem for path in SAMPLES.glob("*.prototxt") if not is_solver(path)}
    assert files == SIZES.keys()


@pytest.mark.parametrize("name", [name for name in SIZES if "deploy" not in name])
def test_a_step_changes_every_parameter(name: str) -> None:
    brought = from_caffe(place(name), dtype="float64", **SIZES[name])
    assert check(from_yaml(to_yaml(brought.net))) == brought.net
    step = check(apply_solver(backward(brought.net), SOLVER))
    states = start(step, seed=1)
    values = run(step, fed(step), states)
    for loss in losses_of(brought.net):
        assert torch.isfinite(values[loss]), loss
    after = following(step, values)
    for state in brought.net.states.values():
        if state.trainable and state.lr_mult and state.read not in CANCELLED:
            assert not torch.equal(after[state.read], states[state.read]), state.read
            assert torch.isfinite(after[state.read]).all(), state.read


@pytest.mark.parametrize("name", SIZES)
def test_the_net_of_the_test_phase_has_the_same_parameters(name: str) -> None:
    brought = from_caffe(place(name), **SIZES[name])
    if brought.test is None:
        return
    for state in brought.test.states.values():
        if state.trainable:
            assert brought.net.blobs[state.read].shape == brought.test.blobs[state.read].shape
    values = run(brought.test, fed(brought.test), start(brought.test, seed=1))
    for output in brought.test.outputs:
        assert torch.isfinite(values[output]).all(), output


@pytest.mark.parametrize("name", ["mobilenet_deploy", "resnet50_deploy"])
def test_deployed_nets_give_probabilities(name: str) -> None:
    brought = from_caffe(place(name), batch=3)
    assert brought.test is not None
    values = run(brought.test, fed(brought.test), start(brought.test, seed=1))
    assert brought.test.outputs == ("prob",)
    torch.testing.assert_close(values["prob"].flatten(1).sum(1), torch.ones(3))


def test_both_forms_give_the_same_losses_and_measures() -> None:
    graph = from_caffe(place("googlenet_train_val"), **SIZES["googlenet_train_val"])
    assert losses_of(graph.net) == {"loss1/loss1": 0.3, "loss2/loss2": 0.3, "loss3/loss": 1.0}
    assert graph.test is not None
    assert {"loss3/top-1", "loss3/top-5"} <= set(graph.test.outputs)


def test_a_siamese_net_has_one_set_of_parameters() -> None:
    net = from_caffe(place("siamese_train_test"), image=(2, 28, 28)).net
    named = {name for name in net.states if net.states[name].trainable}
    assert named == {f"{n}_{p}" for n in ("conv1", "conv2", "ip1", "ip2", "feat") for p in "wb"}


def test_stages_of_a_solver_choose_the_source_of_tests() -> None:
    path, solver = place("mnist_autoencoder"), place("mnist_autoencoder_solver")
    assert from_caffe(path, image=(1, 28, 28)).test is None
    brought = from_caffe(path, solver=solver, image=(1, 28, 28))
    assert brought.test is not None
    assert set(brought.test.outputs) == {"cross_entropy_loss", "l2_error"}
    assert losses_of(brought.net) == {"cross_entropy_loss": 1.0, "l2_error": 0.0}
    weight = start(brought.net)["encode1/weight"]
    assert 5 < (weight != 0).sum(0).double().mean() < 25


def test_levels_and_stages_of_a_net_choose_layers() -> None:
    net = from_caffe(place("odds_and_ends")).net
    kinds = [op.kind for op in net.ops.values()]
    assert "Elu" in kinds
    assert "Tanh" not in kinds


def test_a_solver_holds_its_net() -> None:
    brought = from_caffe(place("inner_solver"), image=(1, 8, 8))
    assert brought.solver is not None
    assert brought.solver.rate == MultiStep(0.001, steps=(100, 200), gamma=0.5)
    assert (brought.solver.type, brought.solver.iter_size) == ("Adam", 2)
    assert brought.test is not None
    for graph in (brought.net, brought.test):
        assert "Tanh" in {op.kind for op in graph.ops.values()}


def test_solvers() -> None:
    solver = read_solver(place("googlenet_quick_solver"))
    assert solver.rate == Poly(0.01, max_iterations=2400000, power=0.5)
    solver = read_solver(place("mnist_autoencoder_solver"))
    assert (solver.type, solver.rate) == ("Nesterov", Step(0.01, step=10000, gamma=0.1))
    assert solver.test_iter == (500, 100)


@pytest.mark.parametrize(
    ("name", "accuracy"), [("mnist_autoencoder_solver", False), ("inner_solver", True)]
)
def test_solvers_train(tmp_path: Path, name: str, accuracy: bool) -> None:
    folder = tmp_path / "run"
    options = ("--data", "fashion-mini", "--iters", "2", "--threads", "1", "--out", folder)
    called = call("train", place(name), *options)
    assert (called.code, called.err) == (0, "")
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["test_accuracy"] is not None) == accuracy
    assert summary["test_loss"] > 0
    assert call("train", folder / "config.yaml", "--out", tmp_path / "again").code == 0
