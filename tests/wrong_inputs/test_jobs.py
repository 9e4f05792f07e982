"""What users get wrong in job files and nets, through the real entry point."""

from __future__ import annotations

from pathlib import Path

import pytest

import purine as pu
from purine.graph import save_yaml
from tests.wrong_inputs.refused import refused

JOBS: dict[str, tuple[str, list[str]]] = {
    "unknown key": (
        "net: mlp\nbatchsize: 3\n",
        ["job.yaml:2", "there is no option 'batchsize'", "expected: one of net", "did you mean"],
    ),
    "wrong type": (
        "net: mlp\n\nbatch: many\n",
        ["job.yaml:3", "batch is text 'many'", "expected: a whole number", "found: text 'many'"],
    ),
    "wrong type of a list": (
        "mean: [1, a]\n",
        ["job.yaml:1", "mean is list", "expected: a number"],
    ),
    "unknown precision": (
        "net: mlp\nprecision: half\n",
        ["job.yaml:2", "precision is text 'half'", "expected: one of fp32, tf32, bf16, fp16"],
    ),
    "precision by a number": ("precision: 16\n", ["job.yaml:1", "precision is 16"]),
    "truth for a number": ("lr: true\n", ["job.yaml:1", "lr is bool True", "expected: a number"]),
    "number for a truth": (
        "mirror: 1\n",
        ["job.yaml:1", "expected: true or false", "found: int 1"],
    ),
    "out of range": ("epochs: -3\n", ["job.yaml:1", "epochs is -3", "0 or more"]),
    "key twice": ("lr: 1.0\nlr: 2.0\n", ["job.yaml:2", "lr is given twice", "every key once"]),
    "a list": ("- net: mlp\n", ["job.yaml:1", "a job file is a mapping", "found: a list"]),
    "syntax error": ("net: [mlp\n", ["job.yaml:2", "the job file is not YAML", "found: "]),
    "a device twice": ("devices: cpu:0,cpu:0\n", ["job.yaml:1", "named twice"]),
    "unknown setting of parallelism": (
        "parallel:\n  data: 2\n  pipelines: 2\n",
        ["job.yaml:3", "no setting 'pipelines'", "did you mean 'pipeline'?"],
    ),
    "wrong setting of parallelism": (
        "parallel: {data: true}\n",
        ["job.yaml:1", "data is True", "expected: a whole number"],
    ),
    "parallelism as a list": ("parallel: [2, 2]\n", ["job.yaml:1", "parallel is list"]),
    "a schedule whose units wait for each other": (
        "parallel:\n  pipeline: 2\n  schedule: |\n    0: F0 B0 F1 B1\n    1: F0 F1 B0 B1\n",
        ["job.yaml:3", "its units wait for each other", "waits for"],
    ),
}


@pytest.mark.parametrize("name", JOBS)
def test_wrong_job_files(tmp_path: Path, name: str) -> None:
    text, texts = JOBS[name]
    job = tmp_path / "job.yaml"
    job.write_text(text)
    refused(tmp_path, ["train", str(job), "--out", str(tmp_path / "out")], texts)


@pytest.mark.parametrize("options", ["", "--devices cpu:0-1 --threads 1 --share-cores"])
def test_a_net_that_does_not_fit(
    tmp_path: Path, options: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("purine.runtime.capacity.available_memory", lambda device: 5_000_000)
    texts = ["does not fit into the memory of cpu", "at most 5.0 MB", "found: ", "recompute="]
    arguments = ["train", *options.split(), "--out", str(tmp_path / "out")]
    refused(tmp_path, arguments, texts)
    refused(tmp_path, [*arguments, "--dry-run"], texts)


def test_a_schedule_file_with_a_cycle(tmp_path: Path) -> None:
    grid = tmp_path / "grid.txt"
    grid.write_text("0: F0 B0 F1 B1\n1: F0 F1 B0 B1\n")
    arguments = ["train", "--parallel", f"pipeline=2,schedule={grid}", "--out", str(tmp_path / "o")]
    refused(tmp_path, arguments, ["grid.txt", "units wait for each other", "1F1 waits for 0F1"])


def test_missing_job_file(tmp_path: Path) -> None:
    refused(tmp_path, ["train", str(tmp_path / "j.yaml")], ["cannot read the job file", "j.yaml"])


def test_a_net_without_loss_or_data(tmp_path: Path) -> None:
    file, out = tmp_path / "net.yaml", str(tmp_path / "out")
    blob = "- {type: blob, name: x, size: [2, 3]}\n"
    file.write_text(blob + "- {type: op, op_type: Relu, name: r, inputs: [x], outputs: [y]}\n")
    arguments = ["train", "--net", str(file), "--out", out]
    refused(tmp_path, arguments, ["net.yaml: the net has no Data op", "found: kinds Relu"])
    file.write_text(
        "- {type: blob, name: data, size: [8, 1, 28, 28]}\n"
        "- {type: blob, name: label, size: [8], dtype: int64}\n"
        "- {type: op, op_type: Data, name: data, inputs: [], outputs: [data, label]}\n"
        "- {type: op, op_type: Relu, name: r, inputs: [data], outputs: [y]}\n"
    )
    refused(tmp_path, arguments, ["net.yaml: the net has no loss", "expected: ", "SoftmaxLoss"])


def test_a_net_for_other_images(tmp_path: Path) -> None:
    file = tmp_path / "net.yaml"
    save_yaml(pu.zoo.mlp(8, image=(3, 32, 32)), file)
    arguments = ["train", "--net", str(file), "--out", str(tmp_path / "out")]
    refused(tmp_path, arguments, ["[1, 28, 28]", "[3, 32, 32]", "expected: blob 'data'", "found: "])
