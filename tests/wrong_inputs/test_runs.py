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
    texts = [f"{config}: the job of this run is not whole", found, "put the file back"]
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
