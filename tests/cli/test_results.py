"""`purine test --confusion` and `purine infer`."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

import purine as pu
from purine.data import open_data
from purine.graph import save_yaml
from tests.cli.runs import SMALL, states
from tests.command import call, tree


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results") / "run"
    assert call(*SMALL, "--iters", "12", "--out", folder).code == 0
    return folder


@pytest.fixture(scope="module")
def expected(run: Path) -> tuple[np.ndarray, np.ndarray]:
    """The probabilities of the test samples, by a net that is fed, and their labels."""
    test = open_data("fashion-mini").test
    assert test is not None
    images, labels = test.batch(np.arange(len(test)))
    net = pu.analysis.infer.with_batch(pu.zoo.mlp(32), len(test))
    graph = pu.inference(net, ["fc3"])
    values = {name: value for name, value in states(run).items() if name in graph.states}
    scores = pu.compute(graph, {"data": images.float() / 255}, states=values)["fc3"]
    return scores.softmax(-1).numpy(), labels.numpy()


def test_confusions_are_those_of_the_predictions(
    run: Path, expected: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    probabilities, labels = expected
    picture = tmp_path / "c.svg"
    told = json.loads(call("test", run, "--confusion", "--json", "--out", picture).out)
    counts = np.zeros((10, 10), dtype=int)
    np.add.at(counts, (labels, probabilities.argmax(1)), 1)
    assert told["confusion"] == counts.tolist()
    assert told["accuracy"] == pytest.approx(counts.trace() / counts.sum())
    root = ElementTree.fromstring(picture.read_text())
    texts = [item.text for item in root.iter() if item.text]
    wrong = counts - np.diag(counts.diagonal())
    one, two = np.unravel_index(wrong.argmax(), wrong.shape)
    worst = f"class {one} taken for {two}: {wrong.max()} of {counts[one].sum()} samples"
    assert any(worst in text for text in texts)  # for readers who do not see it
    assert str(counts.max()) in texts
    lines = call("test", run, "--confusion").out.splitlines()
    shown = [line.split() for line in lines if line.split()[:1] == ["3"]]
    assert [int(cell.replace(".", "0")) for cell in shown[0][1:11]] == counts[3].tolist()
    assert any(line.startswith(worst) for line in lines)


def test_predictions_are_written_in_the_order_of_the_samples(
    run: Path, expected: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    probabilities, _ = expected
    order = np.argsort(-probabilities, axis=1)[:, :3]
    stored = tmp_path / "p.npz"
    assert call("infer", run, "--top", "3", "--out", stored).code == 0
    with np.load(stored) as arrays:
        assert arrays["index"].tolist() == list(range(1000))
        assert (arrays["classes"] == order).mean() > 0.999  # two may be equally likely
        best = np.take_along_axis(probabilities, order, 1)
        np.testing.assert_allclose(arrays["probabilities"], best, atol=1e-5)
    rows = list(csv.DictReader(io.StringIO(call("infer", run, "--top", "2").out)))
    assert list(rows[0]) == ["index", "class", "probability", "class_2", "probability_2"]
    assert len(rows) == 1000  # also those that fill no whole batch
    assert [int(row["class"]) for row in rows[:50]] == order[:50, 0].tolist()


def test_data_without_a_test_part_is_predicted_whole(run: Path, tmp_path: Path) -> None:
    test = open_data("fashion-mini").test
    assert test is not None
    images, labels = (part.numpy() for part in test.batch(np.arange(50)))
    np.savez(tmp_path / "some.npz", train_images=images, train_labels=labels)
    called = call("infer", run, "--data", tmp_path / "some.npz", "--out", tmp_path / "p.csv")
    assert called.out.startswith(f"{tmp_path / 'p.csv'}: predictions for 50 samples of ")
    whole = call("infer", run).out.splitlines()
    assert (tmp_path / "p.csv").read_text().splitlines() == whole[:51]


def test_a_net_with_an_answer_for_each_token(tmp_path: Path) -> None:
    net = pu.zoo.gpt2(8, context=5, vocabulary=7, width=8, heads=2, layers=1)
    file, out = tmp_path / "net.yaml", tmp_path / "run"
    save_yaml(net, file)
    data = "synthetic-tokens:length=5,vocabulary=7,count=40"
    trained = call("train", "--net", file, "--data", data, "--iters", "2", "--out", out)
    assert trained.code == 0, trained.err
    refused = call("infer", out, "--out", tmp_path / "p.csv")
    assert refused.code == 2
    assert "several answers for a sample" in refused.err
    assert call("infer", out, "--out", tmp_path / "p.npz").code == 0
    with np.load(tmp_path / "p.npz") as arrays:
        assert arrays["classes"].shape[1:] == (5, 1)
    counted = json.loads(call("test", out, "--confusion", "--json").out)
    assert np.sum(counted["confusion"]) == counted["samples"] * 5
    assert sorted(path.name for path in tmp_path.iterdir()) == ["net.yaml", "p.npz", "run"]


def test_nothing_is_left_where_writing_fails(run: Path, tmp_path: Path) -> None:
    called = call("infer", run, "--out", tmp_path / "missing/p.csv")
    assert called.code == 2
    assert "cannot write the file" in called.err
    (tmp_path / "p.csv").write_text("before")
    broken = shutil.copytree(run, tmp_path / "broken")
    for file in broken.glob("checkpoints/*/*.safetensors"):
        file.write_bytes(b"")
    before = tree(tmp_path)
    assert call("infer", broken, "--out", tmp_path / "p.csv").code == 2
    assert (tmp_path / "p.csv").read_text() == "before"
    assert tree(tmp_path) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("infer", "--top", "11"), "the 11 likeliest classes are asked for"),
        (("infer", "--out", "p.json"), "a file of type .json cannot be written here"),
        (("infer", "--data", "synthetic:image=3x8x8,classes=10,count=50"), "do not become"),
        (("test", "--out", "c.svg"), "--out has nothing to draw"),
        (("test", "--confusion", "--out", "c.png"), "a file of type .png cannot be written here"),
        (("test", "--confusion", "--checkpoint", "5"), "there is no checkpoint of iteration 5"),
    ],
)
def test_mistakes(
    run: Path,
    arguments: tuple[str, ...],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    called = call(arguments[0], run, *arguments[1:])
    assert called.code == 2
    assert message in called.err
    assert tree(tmp_path) == []


def test_predictions_from_python(run: Path) -> None:
    """`Run.predictions` gives outputs of any shape, batch after batch."""
    data = pu.data.fashion_mini()
    graph = pu.evaluation(pu.data.prepare(pu.zoo.mlp(300), data.train), ["fc3"])
    with pu.Run(graph, data=data) as made:
        made.set_states({n: v for n, v in states(run).items() if n in graph.states and "/" in n})
        sizes = [len(outputs["fc3"]) for outputs in made.predictions(graph)]
    assert sizes == [300, 300, 300, 100]
