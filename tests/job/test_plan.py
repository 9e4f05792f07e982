"""Plans: open options are settled, and graphs follow the options."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import purine as pu
from purine.errors import ConfigError
from purine.job import Job, make_plan, merge
from purine.job.config import given_options
from purine.job.file import missing_keys
from purine.job.placing import laid_out, low_precision, over_hosts, placement, workers_of
from tests.importers.mutations import SAMPLES

NET = SAMPLES / "lenet_train_test.prototxt"
DATA = "synthetic:image=1x4x4,classes=3,count=50"


def test_a_plan_settles_every_option_that_a_run_records() -> None:
    job = make_plan(Job(net="mlp", batch=8)).job
    assert missing_keys(given_options(job)) == []
    assert (job.epochs, job.iters, job.lr, job.momentum, job.weight_decay) == (
        *(1, None, 0.01, 0.9, 5e-4),
    )
    assert (job.lr_policy, job.accumulate, job.seed, job.log_every) == ("fixed", 1, 0, 10)
    assert (job.data, job.mean, job.mirror, job.parallel) == ("fashion-mini", 0.0, False, None)


def test_options_that_are_given_are_kept() -> None:
    given = {"iters": 3, "lr": 0.5, "momentum": 0.0, "seed": 4, "mirror": True, "mean": 7.0}
    job = make_plan(merge({"net": "mlp", "batch": 8, "data": DATA}, given)).job
    assert {name: getattr(job, name) for name in given} == given
    assert job.epochs is None


def test_solvers_have_defaults_of_their_own() -> None:
    adam = make_plan(Job(net="mlp", batch=8, data=DATA, solver="adam")).job
    assert (adam.lr, adam.momentum, adam.weight_decay) == (0.001, None, 0.0)
    with pytest.raises(ConfigError, match="solver adam takes no momentum"):
        make_plan(Job(net="mlp", batch=8, data=DATA, solver="adam", momentum=0.9))


def test_epochs_of_batches_that_do_not_divide_the_data() -> None:
    plan = make_plan(Job(net="mlp", batch=8, data=DATA, epochs=2))  # 50 samples
    assert (plan.iterations, plan.epochs, plan.samples_per_iteration) == (13, 2, 8)
    assert [plan.epoch(iteration) for iteration in (1, 7, 8, 13)] == [1, 1, 2, 2]
    assert [plan.next_epoch_end(iteration) for iteration in (0, 6, 7, 12)] == [7, 7, 13, 13]
    accumulated = make_plan(Job(net="mlp", batch=8, data=DATA, accumulate=2))
    assert (accumulated.iterations, accumulated.samples_per_iteration) == (4, 16)


def test_samples_are_called_what_they_are() -> None:
    assert make_plan(Job(net="mlp", batch=8, data=DATA)).sample_noun == "images"
    tokens = "synthetic-tokens:length=8,vocabulary=16,count=64"
    assert make_plan(Job(net="gpt2", batch=2, data=tokens)).sample_noun == "samples"


def test_the_layout_of_the_step_is_that_of_the_job() -> None:
    layouts = {}
    for form in ("channels-last", "contiguous"):
        plan = make_plan(merge({"net": "lenet", "batch": 8, "iters": 1, "layout": form}))
        layouts[form] = plan.step.blobs["conv1/weight"].layout
        assert plan.test is not None
        assert plan.test.blobs["conv1/weight"].layout == layouts[form]
        assert not plan.net.blobs["conv1/weight"].layout
    assert layouts == {"channels-last": "channels-last", "contiguous": ""}


def test_without_a_layout_only_graphs_on_gpus_are_laid_out() -> None:
    job = Job(net="lenet")
    step = pu.solvers.sgd(pu.backward(pu.zoo.lenet(8)), lr=0.1)
    assert laid_out(job, step) == step
    assert laid_out(job, pu.layout(step)) == pu.layout(step)
    moved = pu.to_device(step, "cuda:0")
    assert laid_out(job, moved) == pu.layout(moved, "channels-last")


def test_tf32_mixes_no_precisions_in_the_graph() -> None:
    assert low_precision(Job(net="lenet", precision="tf32", devices="cuda:0")) is None
    assert low_precision(Job(precision="bf16")) == "bf16"


def test_transforms_of_a_definition_fill_in_what_the_job_leaves_open(tmp_path: Path) -> None:
    text = NET.read_text().replace(
        "scale: 0.00390625", "scale: 0.5 crop_size: 24 mirror: true mean_value: 7"
    )
    (tmp_path / "net.prototxt").write_text(text)
    job = Job(net=str(tmp_path / "net.prototxt"), data="fashion-mini", batch=20)
    plan = make_plan(job)
    settled = plan.job
    assert (settled.scale, settled.crop, settled.mirror, settled.mean) == (0.5, 24, True, 7)
    assert plan.net.blobs["data"].shape == (20, 1, 24, 24)
    assert {"Crop", "Mirror"} <= {op.kind for op in plan.step.ops.values()}
    assert plan.test is not None
    assert {"Crop", "Mirror"}.isdisjoint(op.kind for op in plan.test.ops.values())
    given = make_plan(
        Job(net=job.net, data=job.data, batch=20, crop=20, mirror=False, scale=2.0, mean=0.0)
    )
    assert given.net.blobs["data"].shape == (20, 1, 20, 20)
    assert (given.job.mirror, given.job.scale, given.job.mean) == (False, 2.0, 0.0)


def test_values_without_a_state_are_noted_in_order(tmp_path: Path) -> None:
    file = tmp_path / "values.safetensors"
    names = [f"extra{number:02}" for number in range(20)]
    values = {name: torch.zeros(1) for name in names}
    save_file(values | {"fc1/bias": torch.zeros(256)}, file)
    notes = make_plan(Job(net="mlp", batch=8, weights=str(file))).notes
    assert f"{file}: the net has no states {', '.join(names[:8])} and 12 more; they" in notes[0]


WORKERS = Job(net="mlp", batch=8, data=DATA, devices="cpu:0-3", share_cores=True)


def test_devices_without_a_number_of_workers_are_shared_out_to_them() -> None:
    job = replace(WORKERS, parallel="asynchronous=ssp,staleness=2,data=2")
    plan = make_plan(job)
    assert plan.job.parallel == "workers=2,asynchronous=ssp,staleness=2,data=2"
    assert plan.step.blobs["worker1/replica1/data"].shape == (2, 1, 4, 4)
    assert plan.samples_per_iteration == 8


@pytest.mark.parametrize(("servers", "workers"), [(0, 4), (1, 3)])
def test_a_server_without_a_worker_takes_a_device(servers: int, workers: int) -> None:
    scheme = f"asynchronous=easgd,servers={servers}"
    job = replace(WORKERS, batch=12, parallel=scheme, devices="host0-3:cpu:0")
    plan = make_plan(job)
    assert plan.job.parallel is not None
    assert plan.job.parallel.startswith(f"workers={workers},asynchronous=easgd")
    assert workers_of(plan.job) == workers
    assert over_hosts(plan.job)
    needs = placement(plan.step)
    assert {at.host for at in needs.peaks} == {f"host{number}" for number in range(4)}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"compile": True}, "workers cannot train with --compile"),
        ({"compress": "fp16"}, "workers cannot train with --compress"),
        ({"precision": "fp16"}, "use --precision bf16"),
        (
            {"parallel": "workers=3,asynchronous=ssp"},
            "the scheme is for 3 devices, and 4 are named",
        ),
        ({"devices": "cuda:0-3"}, "workers cannot be on GPUs"),
        ({"devices": "host0-3:cpu:0"}, "ssp does not go over hosts"),
        ({"batch": 9}, "a batch of 9 cannot be cut by workers 4"),
    ],
)
def test_what_workers_do_not_go_with_is_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_plan(replace(WORKERS, **{"parallel": "asynchronous=ssp", **given}))
