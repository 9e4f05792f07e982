"""What users get wrong in run folders and checkpoints, through the real entry point."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import purine as pu
from purine.graph import save_yaml
from tests.command import call
from tests.wrong_inputs.refused import refused


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "run"
    arguments = ("--net", "mlp", "--batch", "8", "--iters", "2", "--test-every", "9")
    assert call("train", *arguments, "--out", out).code == 0
    return out


def truncate(run: Path) -> None:
    file = run / "checkpoints" / "000000002" / "states.safetensors"
    file.write_bytes(file.read_bytes()[:-9])


def flip_bytes(run: Path) -> None:
    file = run / "checkpoints" / "000000002" / "states.safetensors"
    data = bytearray(file.read_bytes())
    data[-100] ^= 0xFF
    file.write_bytes(data)


def break_manifest(run: Path) -> None:
    (run / "checkpoints" / "000000002" / "manifest.json").write_text("{no json")


def other_net(run: Path) -> None:
    save_yaml(pu.zoo.mlp(8, hidden=(7,)), run / "net.yaml")


def no_manifest(run: Path) -> None:
    (run / "checkpoints" / "000000002" / "manifest.json").unlink()


def other_iteration(run: Path) -> None:
    manifest = run / "checkpoints" / "000000002" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"iteration": 2', '"iteration": 1'))


def renamed(run: Path) -> None:
    (run / "checkpoints" / "000000002").rename(run / "checkpoints" / "000000004")


def with_job(key: str, value: object) -> Callable[[Path], None]:
    """A job that the checkpoint is not of: the same as one that was copied in from elsewhere."""

    def change(run: Path) -> None:
        config = run / "config.yaml"
        text = re.sub(rf"^{key}:.*$", f"{key}: {value}", config.read_text(), flags=re.MULTILINE)
        assert text != config.read_text()
        config.write_text(text)

    return change


CHECKPOINTS: dict[str, tuple[Callable[[Path], None], list[str]]] = {
    "truncated": (truncate, ["000000002", "another size", "expected: ", "found: ", "bytes"]),
    "bytes flipped": (flip_bytes, ["000000002", "is damaged", "expected: sha256", "found: sha256"]),
    "manifest not JSON": (break_manifest, ["000000002", "manifest", "expected: ", "JSON"]),
    "manifest missing": (no_manifest, ["000000002", "the manifest is missing", "no such file"]),
    "iteration changed": (other_iteration, ["the manifest is damaged, or was changed", "sha256"]),
    "folder renamed": (renamed, ["000000004", "another iteration", "iteration 4", "iteration 2"]),
    "of another seed": (
        with_job("seed", 3),
        ["000000002", "of another run: its seed differs", "expected: seed 3", "found: seed 0"],
    ),
    "of another rate": (
        with_job("lr", 0.5),
        ["000000002", "of another run: its lr differs", "expected: lr 0.5", "found: lr 0.01"],
    ),
    "of another net": (other_net, ["000000002", "the checkpoint", "fc", "expected: ", "found: "]),
}


@pytest.mark.parametrize("command", ["test", "train --resume --out"])
@pytest.mark.parametrize("name", CHECKPOINTS)
def test_wrong_checkpoints(tmp_path: Path, trained: Path, name: str, command: str) -> None:
    damage, texts = CHECKPOINTS[name]
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    damage(run)
    refused(tmp_path, [*command.split(), str(run)], texts)


def test_the_way_on_from_a_damaged_checkpoint(tmp_path: Path, trained: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    assert call("train", "--resume", "--out", run, "--iters", "4").code == 0
    damaged = run / "checkpoints" / "000000004"
    (damaged / "states.safetensors").write_bytes(b"")
    resume = f"train --resume --out {run}"
    texts = ["000000002 is intact", f"rm -r {damaged}, then purine {resume}"]
    refused(tmp_path, resume.split(), texts)
    shutil.rmtree(damaged)
    called = call(*resume.split())
    assert (called.code, "from iteration 2" in called.out) == (0, True)


def without(key: str) -> Callable[[str], str]:
    return lambda text: re.sub(rf"^{key}:.*\n", "", text, flags=re.MULTILINE)


CONFIGS: dict[str, tuple[Callable[[str], str], str]] = {
    "empty": (lambda text: "", "found: no net, solver, "),
    "cut at a line end": (lambda text: text[: text.index("seed:")], "devices, share_cores, "),
    "without its last line": (lambda text: text[: text.index("mirror:")], "found: no mirror\n"),
    "without its data": (without("data"), "found: no data\n"),
    "with empty data": (lambda text: re.sub("data:.*", "data:", text), "found: no data\n"),
    "without its length": (without("iters"), "found: no epochs or iters\n"),
}


@pytest.mark.parametrize(
    "command", ["test", "train --resume --out", "train --dry-run --resume --out"]
)
@pytest.mark.parametrize("name", CONFIGS)
def test_configs_that_are_not_whole(tmp_path: Path, trained: Path, name: str, command: str) -> None:
    damage, found = CONFIGS[name]
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    config = run / "config.yaml"
    text = damage(config.read_text())
    assert text != config.read_text()
    config.write_text(text)
    texts = [f"{config}: the job of this run is not complete", found, "put the file back"]
    refused(tmp_path, [*command.split(), str(run)], texts)
    assert config.read_text() == text


def test_missing_checkpoints_and_runs(tmp_path: Path, trained: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    shutil.rmtree(run / "checkpoints")
    refused(tmp_path, ["test", str(run)], [str(run), "no checkpoint in this folder", "expected: "])
    gone = [f"{run}: the run is complete", "its checkpoints are gone", "found: summary.json"]
    for more in ([], ["--iters", "5"], ["--dry-run"]):
        refused(tmp_path, ["train", "--resume", "--out", str(run), *more], gone)
    none = str(tmp_path / "none")
    refused(tmp_path, ["test", none], [none, "there is no run in this folder", "found: nothing"])
    refused(tmp_path, ["test", none], [f"or start a run there: purine train --out {none}"])
    traced = ["expected: trace.json", "`purine train --trace`", "found: config.yaml"]
    refused(tmp_path, ["trace", str(run)], [f"{run}: there is no trace in this folder", *traced])
    refused(tmp_path, ["trace", none], ["none: cannot read the trace", "No such file"])
    file = tmp_path / "trace.json"
    for text, found in (("{}", "without 'otherData'"), ("[]", "another form"), ("", "")):
        file.write_text(text)
        refused(tmp_path, ["trace", str(file)], ["--trace` or Trace.save wrote", found])


def test_checkpoints_that_python_saved(tmp_path: Path) -> None:
    saved = tmp_path / "python"
    data = pu.data.fashion_mini()
    net = pu.data.prepare(pu.zoo.mlp(8), data.train)
    with pu.Run(pu.solvers.sgd(pu.backward(net)), data=data) as run:
        run.save(saved)
    what = f"{saved}: this folder holds checkpoints that a Python run saved, without its job"
    texts = [what, "found: checkpoints", f"Run.load('{saved}')", "another --out"]
    for command in ("test", "train --out", "train --resume --out"):
        refused(tmp_path, [*command.split(), str(saved)], texts)


def test_a_run_without_its_config(tmp_path: Path, trained: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    (run / "config.yaml").unlink()
    for command in ("test", "train --resume --out"):
        texts = ["there is no run in this folder", "or start a run with another --out"]
        refused(tmp_path, [*command.split(), str(run)], texts)
    called = refused(tmp_path, ["train", "--out", str(run)], ["already", "choose another folder"])
    assert "--resume" not in called.err


def test_out_that_exists(tmp_path: Path, trained: Path) -> None:
    options = ["train", "--net", "mlp", "--iters", "1", "--out"]
    refused(trained, [*options, str(trained)], ["already", "a new or an empty folder", "--resume"])
    file = tmp_path / "file"
    file.write_text("mine")
    refused(tmp_path, [*options, str(file)], ["this is not a folder", "found: a file"])
    inside = str(file / "out")
    refused(tmp_path, [*options, inside], ["cannot write", "Not a directory", "--out"])


def test_no_folder_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for more in ([], ["--resume"], ["--dry-run"]):
        refused(tmp_path, ["train", "--net", "mlp", "--out", "", *more], ["folder is empty"])


def test_nothing_to_show(tmp_path: Path) -> None:
    refused(tmp_path, ["show"], ["there is nothing to show", "alexnet, "])
    refused(tmp_path, ["show", "--net", "lenett"], ["no net 'lenett'", "did you mean 'lenet'?"])
    refused(tmp_path, ["show", "--net", "net.yaml"], ["name a file without --net"])
    refused(tmp_path, ["show", "--net", "resnet"], ["there is no net 'resnet'", "expected: one of"])


@pytest.mark.parametrize("command", ["show", "check"])
def test_a_run_for_a_graph(tmp_path: Path, trained: Path, command: str) -> None:
    what = "this is the folder of a run, not a graph"
    texts = [f"{trained}: {what}", f"the net of the run: purine {command} {trained}/net.yaml"]
    refused(trained, [command, str(trained)], texts)
    assert call(command, trained / "net.yaml").code == 0
    refused(tmp_path, [command, str(tmp_path)], [f"{tmp_path}: cannot read the graph"])
    (tmp_path / "config.yaml").touch()
    refused(tmp_path, [command, str(tmp_path)], [f"{tmp_path}: {what}", "no net.yaml in it"])
    refused(tmp_path, [command, "n" * 300], ["cannot read the graph"])


def put(name: str, content: str | bytes) -> Callable[[Path], None]:
    def damage(run: Path) -> None:
        (run / name).write_bytes(content if isinstance(content, bytes) else content.encode())

    return damage


def change(name: str, old: str, new: str) -> Callable[[Path], None]:
    def damage(run: Path) -> None:
        text = (run / name).read_text()
        assert old in text
        (run / name).write_text(text.replace(old, new, 1))

    return damage


def remove(name: str) -> Callable[[Path], None]:
    def damage(run: Path) -> None:
        path = run / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()

    return damage


def make_folder(name: str) -> Callable[[Path], None]:
    def damage(run: Path) -> None:
        remove(name)(run)
        (run / name).mkdir()

    return damage


def make_file(name: str) -> Callable[[Path], None]:
    def damage(run: Path) -> None:
        remove(name)(run)
        (run / name).write_text("")

    return damage


STATES = "checkpoints/000000002/states.safetensors"
MANIFEST = "checkpoints/000000002/manifest.json"
TEST = ("test",)
RESUME = ("train", "--resume", "--iters", "4", "--out")

DAMAGES: dict[str, tuple[Callable[[Path], None], tuple[str, ...], str]] = {
    "config not YAML train": (
        put("config.yaml", "net: [\n"),
        RESUME,
        "config.yaml:2:1: the text is not YAML",
    ),
    "config not YAML test": (
        put("config.yaml", "net: [\n"),
        TEST,
        "config.yaml:2:1: the text is not YAML",
    ),
    "config a list train": (
        put("config.yaml", "- a\n"),
        RESUME,
        "config.yaml:1: a job file is a mapping",
    ),
    "config a list test": (
        put("config.yaml", "- a\n"),
        TEST,
        "config.yaml:1: a job file is a mapping",
    ),
    "config not UTF-8 train": (
        put("config.yaml", b"net: \xff\n"),
        RESUME,
        "config.yaml:1: the file is not UTF-8 text",
    ),
    "config not UTF-8 test": (
        put("config.yaml", b"net: \xff\n"),
        TEST,
        "config.yaml:1: the file is not UTF-8 text",
    ),
    "config a folder train": (
        make_folder("config.yaml"),
        RESUME,
        "run: there is no run in this folder",
    ),
    "config a folder test": (
        make_folder("config.yaml"),
        TEST,
        "run: there is no run in this folder",
    ),
    "config an unknown key train": (
        change("config.yaml", "seed: 0", "seed: 0\nmore: 3"),
        RESUME,
        "there is no option 'more'",
    ),
    "config an unknown key test": (
        change("config.yaml", "seed: 0", "seed: 0\nmore: 3"),
        TEST,
        "there is no option 'more'",
    ),
    "config another batch train": (
        change("config.yaml", "batch: 8", "batch: x"),
        RESUME,
        "config.yaml:3: batch is text 'x'",
    ),
    "config another batch test": (
        change("config.yaml", "batch: 8", "batch: x"),
        TEST,
        "config.yaml:3: batch is text 'x'",
    ),
    "config data gone train": (
        change("config.yaml", "data: fashion-mini", "data: /none/none"),
        RESUME,
        "/none/none: there is no such file or folder",
    ),
    "config data gone test": (
        change("config.yaml", "data: fashion-mini", "data: /none/none"),
        TEST,
        "/none/none: there is no such file or folder",
    ),
    "config a negative length train": (
        change("config.yaml", "iters: 2", "iters: -2"),
        RESUME,
        "config.yaml:4: iters is -2",
    ),
    "config a negative length test": (
        change("config.yaml", "iters: 2", "iters: -2"),
        TEST,
        "config.yaml:4: iters is -2",
    ),
    "config a device that is not there train": (
        change("config.yaml", "devices: cpu:0", "devices: cuda:77"),
        RESUME,
        "device cuda:77 is not there",
    ),
    "net gone train": (remove("net.yaml"), RESUME, "net.yaml: cannot read the graph"),
    "net gone test": (remove("net.yaml"), TEST, "net.yaml: cannot read the graph"),
    "net empty train": (put("net.yaml", ""), RESUME, "net.yaml:1: the text is empty"),
    "net empty test": (put("net.yaml", ""), TEST, "net.yaml:1: the text is empty"),
    "net not YAML train": (put("net.yaml", "- {"), RESUME, "net.yaml:2:1: the text is not YAML"),
    "net not YAML test": (put("net.yaml", "- {"), TEST, "net.yaml:2:1: the text is not YAML"),
    "net a folder train": (make_folder("net.yaml"), RESUME, "net.yaml: cannot read the graph"),
    "net a folder test": (make_folder("net.yaml"), TEST, "net.yaml: cannot read the graph"),
    "net another train": (
        put("net.yaml", "- {type: blob, name: x, size: [2, 3]}\n"),
        RESUME,
        "the net has no loss",
    ),
    "net another test": (
        put("net.yaml", "- {type: blob, name: x, size: [2, 3]}\n"),
        TEST,
        "checkpoints/000000002: the checkpoint is of another run: its net differs",
    ),
    "metrics a folder train": (
        make_folder("metrics.jsonl"),
        RESUME,
        "metrics.jsonl: the metrics cannot be read",
    ),
    "metrics not JSON train": (
        put("metrics.jsonl", "{no\n"),
        RESUME,
        "metrics.jsonl:1: the metrics cannot be read",
    ),
    "metrics no object train": (
        put("metrics.jsonl", "[1]\n"),
        RESUME,
        "metrics.jsonl:1: the metrics cannot be read",
    ),
    "metrics without an iteration train": (
        put("metrics.jsonl", '{"loss": 1}\n'),
        RESUME,
        "metrics.jsonl:1: the metrics cannot be read",
    ),
    "metrics with an iteration of words train": (
        put("metrics.jsonl", '{"iteration": "two"}\n'),
        RESUME,
        "metrics.jsonl:1: the metrics cannot be read",
    ),
    "metrics not UTF-8 train": (
        put("metrics.jsonl", b"\xff\n"),
        RESUME,
        "metrics.jsonl:1: the metrics cannot be read",
    ),
    "metrics a test without numbers train": (
        put("metrics.jsonl", '{"iteration": 1, "test_loss": 3}\n'),
        RESUME,
        "metrics.jsonl:1: the metrics cannot be read",
    ),
    "checkpoints gone train": (
        remove("checkpoints"),
        RESUME,
        "run: the run is complete, and its checkpoints are gone",
    ),
    "checkpoints gone test": (
        remove("checkpoints"),
        TEST,
        "run: there is no checkpoint in this folder",
    ),
    "checkpoints a file train": (
        make_file("checkpoints"),
        RESUME,
        "run: the run is complete, and its checkpoints are gone",
    ),
    "checkpoints a file test": (
        make_file("checkpoints"),
        TEST,
        "run: there is no checkpoint in this folder",
    ),
    "states gone train": (remove(STATES), RESUME, "checkpoints/000000002: the values are missing"),
    "states gone test": (remove(STATES), TEST, "checkpoints/000000002: the values are missing"),
    "states empty train": (
        put(STATES, ""),
        RESUME,
        "checkpoints/000000002: states.safetensors has another si",
    ),
    "states empty test": (
        put(STATES, ""),
        TEST,
        "checkpoints/000000002: states.safetensors has another si",
    ),
    "states a folder train": (
        make_folder(STATES),
        RESUME,
        "checkpoints/000000002: the values are missing",
    ),
    "states a folder test": (
        make_folder(STATES),
        TEST,
        "checkpoints/000000002: the values are missing",
    ),
    "states of zeros train": (
        put(STATES, bytes(1882264)),
        RESUME,
        "checkpoints/000000002: states.safetensors is damaged",
    ),
    "states of zeros test": (
        put(STATES, bytes(1882264)),
        TEST,
        "checkpoints/000000002: states.safetensors is damaged",
    ),
    "manifest a folder train": (
        make_folder(MANIFEST),
        RESUME,
        "checkpoints/000000002: cannot read the manifest",
    ),
    "manifest a folder test": (
        make_folder(MANIFEST),
        TEST,
        "checkpoints/000000002: cannot read the manifest",
    ),
    "manifest empty train": (
        put(MANIFEST, ""),
        RESUME,
        "checkpoints/000000002: the manifest cannot be read",
    ),
    "manifest empty test": (
        put(MANIFEST, ""),
        TEST,
        "checkpoints/000000002: the manifest cannot be read",
    ),
    "manifest a list train": (
        put(MANIFEST, "[]"),
        RESUME,
        "checkpoints/000000002: the manifest cannot be read",
    ),
    "manifest a list test": (
        put(MANIFEST, "[]"),
        TEST,
        "checkpoints/000000002: the manifest cannot be read",
    ),
    "manifest no object train": (
        put(MANIFEST, "3"),
        RESUME,
        "checkpoints/000000002: the manifest cannot be read",
    ),
    "manifest no object test": (
        put(MANIFEST, "3"),
        TEST,
        "checkpoints/000000002: the manifest cannot be read",
    ),
    "manifest not UTF-8 train": (
        put(MANIFEST, b"\xff"),
        RESUME,
        "checkpoints/000000002: the manifest cannot be read",
    ),
    "manifest not UTF-8 test": (
        put(MANIFEST, b"\xff"),
        TEST,
        "checkpoints/000000002: the manifest cannot be read",
    ),
    "manifest without keys train": (
        put(MANIFEST, "{}"),
        RESUME,
        "checkpoints/000000002: the manifest has no 'version'",
    ),
    "manifest without keys test": (
        put(MANIFEST, "{}"),
        TEST,
        "checkpoints/000000002: the manifest has no 'version'",
    ),
    "manifest deep train": (
        put(MANIFEST, "[" * 100000),
        RESUME,
        "checkpoints/000000002: the manifest cannot be read",
    ),
    "manifest deep test": (
        put(MANIFEST, "[" * 100000),
        TEST,
        "checkpoints/000000002: the manifest cannot be read",
    ),
    "checkpoint a file train": (
        make_file("checkpoints/000000002"),
        RESUME,
        "run: the run is complete, and its checkpoints are gone",
    ),
    "checkpoint a file test": (
        make_file("checkpoints/000000002"),
        TEST,
        "run: there is no checkpoint in this folder",
    ),
    "checkpoint an empty folder train": (
        make_folder("checkpoints/000000002"),
        RESUME,
        "checkpoints/000000002: the manifest is missing",
    ),
    "checkpoint an empty folder test": (
        make_folder("checkpoints/000000002"),
        TEST,
        "checkpoints/000000002: the manifest is missing",
    ),
    "lock a folder train": (
        make_folder(".lock"),
        RESUME,
        "run: cannot write to the folder of the run",
    ),
    "start values damaged train": (
        put("start.safetensors", "none"),
        RESUME,
        "start.safetensors: the file is damaged, or of another ki",
    ),
    "mean damaged train": (
        put("mean.safetensors", "none"),
        RESUME,
        "both mean and mean_file are given",
    ),
    "mean damaged test": (
        put("mean.safetensors", "none"),
        TEST,
        "both mean and mean_file are given",
    ),
    "test net damaged train": (
        put("test_net.yaml", "- {"),
        RESUME,
        "test_net.yaml:2:1: the text is not YAML",
    ),
    "test net damaged test": (
        put("test_net.yaml", "- {"),
        TEST,
        "test_net.yaml:2:1: the text is not YAML",
    ),
    "solver damaged train": (
        put("solver.prototxt", "base_lr: {"),
        RESUME,
        "solver.prototxt:1: the text cannot be read",
    ),
    "trace not JSON": (put("trace.json", "{"), ("trace",), "trace.json: the file is not JSON"),
    "trace a number": (
        put("trace.json", "3"),
        ("trace",),
        "trace.json: the file is not a trace of purine",
    ),
    "trace no events": (
        put("trace.json", '{"otherData":{}}'),
        ("trace",),
        "trace.json: the file is not a trace of purine",
    ),
    "trace events of words": (
        put("trace.json", '{"otherData":{},"traceEvents":["a"]}'),
        ("trace",),
        "trace.json: the file is not a trace of purine",
    ),
    "trace deep": (put("trace.json", "[" * 100000), ("trace",), "trace.json: the file is not JSON"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_runs(tmp_path: Path, trained: Path, name: str) -> None:
    damage, command, text = DAMAGES[name]
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    damage(run)
    refused(tmp_path, [*command, run], [text])
