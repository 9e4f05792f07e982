"""A net that is cut over devices trains as the whole one does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import purine as pu
from purine.errors import ConfigError, GraphError, KindError
from purine.graph import Filler, Graph, from_yaml, to_yaml
from purine.importers.torch import Imported
from purine.parallel import replicate, shard
from purine.placement.devices import devices_of
from purine.placement.values import gather_values, shard_values
from purine.registry.fillers import Shard, fill
from tests.importers.models import CASES as MODULES
from tests.importers.torch.test_imported import imported_from, made
from tests.parallel.nets import Trained, agree, trained
from tests.parallel.sharded import CASES, STEPS, serial, step_of, trains_as


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("name", ["lenet", "alexnet", "nin", "gpt2", "vit"])
def test_shards_train_as_the_whole(name: str, count: int) -> None:
    net = shard(CASES[name].net(), f"cpu:0-{count - 1}")
    assert len(devices_of(net)) == count
    trains_as(step_of(net), name)


@pytest.mark.parametrize("count", [2, 3, 4])
def test_branches_groups_and_batch_norm(count: int) -> None:
    net = shard(CASES["branches"].net(), f"cpu:0-{count - 1}")
    assert "first/bn/mean/shard1" in net.states
    assert ("join/shard1" in net.ops) == (count < 4)  # 3 groups are not laid over 4 devices
    trains_as(step_of(net), "branches")


@pytest.mark.parametrize(
    "by",
    ["columns", "rows", {"fc*": "rows"}, {"conv2": "columns", "fc1": "columns"}],
    ids=["columns", "rows", "some-rows", "some-columns"],
)
def test_every_way_to_cut(by: Any) -> None:
    trains_as(step_of(shard(CASES["lenet"].net(), "cpu:0-1", by=by)), "lenet")


def test_an_embedding_by_its_width() -> None:
    net = shard(CASES["gpt2"].net(), "cpu:0-1", by={"embedding": "columns"})
    assert net.blobs["embedding/weight/shard0"].shape == (11, 8)
    trains_as(step_of(net), "gpt2")


@pytest.mark.parametrize("padding", [0, 3, None])
def test_rows_of_padding_are_not_trained(padding: int | None) -> None:
    example = torch.arange(12).view(4, 3) % 6, torch.arange(4) % 2
    layers = torch.nn.Embedding(6, 4, padding), torch.nn.Flatten(), torch.nn.Linear(12, 2)
    module = torch.nn.Sequential(*layers).double()
    imported = pu.from_torch(module, torch.nn.functional.cross_entropy, example)
    names = ("data", "label")
    data = pu.data.DataSet("tokens", pu.data.ArraySource(*example, names=names))
    expected = run_imported(imported, step_of(imported.net), data)
    step = step_of(shard(imported.net, "cpu:0-1"))
    found = run_imported(imported, step, data)
    agree(Trained(found.losses, gather_values(step, found.states)), expected)


def test_uneven_shards() -> None:
    net = shard(CASES["lenet"].net(), "cpu:0-2", by="columns")
    sizes = [net.blobs[f"fc2/weight/shard{number}"].shape for number in range(3)]
    assert sizes == [(4, 500), (3, 500), (3, 500)]
    trains_as(step_of(net), "lenet")


def test_a_column_layer_and_a_row_layer_need_no_gather_between_them() -> None:
    net = shard(CASES["gpt2"].net(), "cpu:0-1")
    gathers = [name for name in net.ops if name.endswith("/gather")]
    assert gathers == ["scores/gather"]
    moved = {op.inputs[0] for op in net.ops.values() if op.kind == "Copy" and "layer1" in op.name}
    assert moved == {
        "layer1/ln1",
        "layer1/ln2",
        "layer1/attention/out/summand1",
        "layer1/mlp/out/summand1",
    }


def test_attention_is_cut_by_heads() -> None:
    net = shard(CASES["gpt2"].net(), "cpu:0-3")
    assert net.blobs["layer1/attention/attend/shard3"].shape == (8, 1, 6, 4)
    filler = net.states["layer1/attention/qkv/weight/shard1"].filler
    assert filler.attributes["spans"] == ((4, 8), (20, 24), (36, 40))


def test_dropout_follows_and_draws_the_same_numbers() -> None:
    net = shard(CASES["alexnet"].net(), "cpu:0-1")
    assert net.ops["fc7/drop/shard1"].attributes["part"] == (1, 26, 13, 26)


def test_tied_parameters_are_cut_once() -> None:
    net = shard(CASES["gpt2"].net(), "cpu:0-1")
    readers = {op.name for op in net.consumers["embedding/weight/shard1"]}
    assert readers == {"embedding/shard1", "scores/shard1"}


def test_multipliers_are_kept() -> None:
    builder = pu.Builder(CASES["lenet"].net())
    old = builder.states.pop("fc1/weight")
    builder.state("fc1/weight", filler=old.filler, trainable=True, lr_mult=0.5, decay_mult=2.0)
    cut = shard(builder.graph(), "cpu:0-1").states["fc1/weight/shard1"]
    assert (cut.trainable, cut.lr_mult, cut.decay_mult) == (True, 0.5, 2.0)


def test_only_the_named_layers_are_cut() -> None:
    net = shard(CASES["lenet"].net(), "cpu:0-1", ops=["fc*"])
    assert "conv1/weight" in net.states
    assert "fc1/weight" not in net.states
    trains_as(step_of(net), "lenet")


@pytest.mark.parametrize("name", ["alexnet", "gpt2"])
def test_data_times_model_parallelism(name: str) -> None:
    step = replicate(step_of(shard(CASES[name].net(4), "cpu:0-1")), "cpu:0-3")
    trains_as(step, name)


def test_micro_batches_of_a_sharded_step() -> None:
    step = pu.parallel.accumulate(step_of(shard(CASES["alexnet"].net(4), "cpu:0-1")), 2)
    trains_as(step, "alexnet")


def test_the_same_bits_twice() -> None:
    step = step_of(shard(CASES["gpt2"].net(), "cpu:0-3"))
    data = CASES["gpt2"].data()
    first, second = (trained(step, data=data, steps=STEPS) for _ in range(2))
    assert first.losses == second.losses
    assert all(torch.equal(first.states[name], second.states[name]) for name in first.states)


def test_evaluation_of_a_sharded_net() -> None:
    whole, cut = CASES["lenet"].net(), shard(CASES["lenet"].net(), "cpu:0-1")
    source = CASES["lenet"].data().train
    data = pu.data.DataSet("both", source, source)
    found = []
    for net in (whole, cut):
        with pu.Run(step_of(net), data=data, seed=3, threads=1, share_cores=True) as run:
            list(run.steps(2))
            found.append(run.evaluate(pu.evaluation(net)))
    assert found[0].keys() == found[1].keys()
    for name, value in found[0].items():
        assert abs(value - found[1][name]) < 1e-9


def run_imported(imported: Imported, step: Graph, data: pu.data.DataSet) -> Trained:
    with pu.Run(step, data=data, seed=0, threads=1, share_cores=True) as run:
        run.set_states(shard_values(step, imported.values))
        return Trained([result.loss for result in run.steps(STEPS)], run.states())


@pytest.mark.parametrize("name", ["mlp", "gpt", "siamese"])
def test_imported_modules(name: str) -> None:
    case = next(case for case in MODULES if case.name == name)
    module, data, example = made(case)
    imported = imported_from(case, module, example)
    expected = run_imported(imported, step_of(imported.net), data)
    for count in (2, 4):
        step = step_of(shard(imported.net, f"cpu:0-{count - 1}"))
        found = run_imported(imported, step, data)
        agree(Trained(found.losses, gather_values(step, found.states)), expected)


def test_values_go_both_ways() -> None:
    step = step_of(shard(CASES["gpt2"].net(), "cpu:0-2"))
    whole = serial("gpt2").states
    cut = shard_values(step, whole)
    assert cut.keys() == step.states.keys()
    assert all(cut[name].shape == step.blobs[name].shape for name in cut)
    back = gather_values(step, cut)
    assert all(torch.equal(back[name], whole[name]) for name in whole)
    assert "momentum/layer1/mlp/fc/weight" in back
    with pytest.raises(ConfigError, match="another size"):
        shard_values(step, {"embedding/weight": torch.zeros(3, 3)})


def test_a_checkpoint_of_a_sharded_run_fits_one_that_is_not(tmp_path: Path) -> None:
    data = pu.data.fashion_mini()
    net = pu.data.prepare(pu.zoo.mlp(batch=16), data.train)
    serial, cut = (
        pu.solvers.sgd(pu.backward(form), lr=0.1, momentum=0.9)
        for form in (net, shard(net, "cpu:0-1"))
    )
    with pu.Run(cut, data=data, seed=3, share_cores=True) as run:
        before = [result.loss for result in run.steps(4)]
        run.save(tmp_path)
        behind = [result.loss for result in run.steps(4)]
    for step, again in ((serial, False), (cut, True)):
        with pu.Run(step, data=data, share_cores=True) as run:
            assert run.load(tmp_path) == len(before)
            assert run.states().keys() == step.states.keys()
            found = [result.loss for result in run.steps(4)]
        assert found == behind if again else found == pytest.approx(behind, rel=1e-5)


def test_a_shard_is_filled_as_its_part_of_the_whole() -> None:
    whole = fill(Filler("msra"), (6, 4), "float32", seed=1, name="w")
    part = Shard("w", (6, 4), 0, ((1, 2), (4, 6)))
    own = fill(part.filler(Filler("msra")), (3, 4), "float32", seed=1, name="w/shard1")
    assert torch.equal(own, whole[[1, 4, 5]])
    with pytest.raises(KindError, match="does not describe a shard"):
        fill(part.filler(Filler("msra")), (2, 4), "float32", seed=1, name="w/shard1")


def lenet() -> Graph:
    return CASES["lenet"].net()


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: shard(lenet(), []), ConfigError, "cut over 0 devices"),
        (lambda: shard(lenet(), ["cpu:0", "cpu:0"]), ConfigError, "of which 1 differ"),
        (lambda: shard(lenet(), "cpu:0-1", ops=["fc9"]), ConfigError, "did you mean fc"),
        (lambda: shard(lenet(), "cpu:0-1", ops=["relu1"]), ConfigError, "no parameters to cut"),
        (
            lambda: shard(lenet(), "cpu:0-1", by="diagonal"),
            ConfigError,
            "by is 'diagonal'\n  expected: one of col",
        ),  # type: ignore[arg-type]
        (lambda: shard(lenet(), "cpu:0-1", by={"fcc": "rows"}), ConfigError, "no op is called"),
        (
            lambda: shard(lenet(), "cpu:0-1", by={"conv1": "rows"}),
            ConfigError,
            "1 places cannot be cut into 2",
        ),
        (
            lambda: shard(lenet(), "cpu:0-15", by={"fc2": "columns"}),
            ConfigError,
            "10 places cannot be cut into 16",
        ),
        (
            lambda: shard(CASES["gpt2"].net(), "cpu:0-7", ops=["layer1/attention/qkv"]),
            ConfigError,
            "4 heads cannot be cut into 8",
        ),
        (
            lambda: shard(CASES["alexnet"].net(), "cpu:0-2", ops=["conv2"]),
            ConfigError,
            "2 groups cannot be laid over 3",
        ),
        (lambda: shard(step_of(lenet()), "cpu:0-1"), GraphError, "has gradients already"),
        (lambda: shard(shard(lenet(), "cpu:0-1"), "cpu:0-1"), GraphError, "sharded already"),
        (lambda: shard(lenet(), "cpu:0-999"), GraphError, "nothing in the net can be cut"),
    ],
)
def test_wrong_requests(make: Callable[[], Graph], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        make()


def test_a_sharded_step_can_be_written_and_read() -> None:
    step = step_of(shard(CASES["gpt2"].net(), "cpu:0-1"))
    assert from_yaml(to_yaml(step)) == step
