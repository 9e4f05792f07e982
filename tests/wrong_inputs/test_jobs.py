"""What users get wrong in job files and nets, through the real entry point."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import purine as pu
from purine.graph import save_yaml
from purine.job import Job, job_text, merge, read_options
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
    "syntax error": ("net: [mlp\n", ["job.yaml:2", "the text is not YAML", "found: "]),
    "an octal number": (
        "net: mlp\niters: 010\n",
        ["job.yaml:2", "do not agree on what 010 means", "a plain decimal number"],
    ),
    "a number in base 60": ("iters: 1:30\n", ["job.yaml:1", "do not agree on what 1:30 means"]),
    "a number with a line": ("iters: 1_000\n", ["job.yaml:1", "do not agree on what 1_000"]),
    "yes": ("mirror: yes\n", ["job.yaml:1", "do not agree on what yes", "true or false"]),
    "on as a setting": ("parallel: {hybrid: on}\n", ["job.yaml:1", "do not agree on what on"]),
    "no as a text": ("net: no\n", ["job.yaml:1", "do not agree on what no", "quote it"]),
    "400 digits": (f"iters: {'9' * 400}\n", ["job.yaml:1", "the number is too large", "99..."]),
    "400 digits of a rate": (f"lr: {'9' * 400}.5\n", ["job.yaml:1", "the number is too large"]),
    "30 digits": (f"batch: {'9' * 30}\n", ["job.yaml:1", "batch is 999", "below 2^63"]),
    "30 digits of a mean": (f"mean: [1, {'9' * 30}]\n", ["job.yaml:1", "below 2^63"]),
    "an alias of itself": ("mean: &a [*a]\n", ["job.yaml:1", "alias *a stands for nothing"]),
    "aliases without end": (
        "net: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
        + "".join(f"k{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 30)),
        ["job.yaml:4", "the alias *a2 stands for too much", "1000 values"],
    ),
    "nested without end": ("mean: " + "[" * 100_000, ["job.yaml:1", "nested too deeply"]),
    "a tag": ("net: !!python/name:os.system ''\n", ["job.yaml:1", "the value has a tag"]),
    "a character that YAML has not": ("net: \x01\n", ["job.yaml:1", "U+0001"]),
    "a list as a key": ("[a]: 1\n", ["job.yaml:1", "a key is not a word", "found: a list"]),
    "a number as a key": ("3: 1\n", ["job.yaml:1", "a key is not a word", "the integer 3"]),
    "iterations without end": (f"iters: {10**15}\n", ["iters is 1000", "at most 999,999,999"]),
    "epochs without end": (f"epochs: {10**15}\n", ["epochs is 1000", "at most 999,999,999"]),
    "a pipeline without end": (
        "parallel: {pipeline: 100000000}\n",
        ["job.yaml:1", "the schedule of the pipeline is too large", "100000000 * 200000000 * 1"],
    ),
    "a second document": ("net: mlp\n---\nnet: lenet\n", ["job.yaml:2", "the text goes on"]),
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


@pytest.mark.parametrize("command", [["check"], ["show"], ["train"], ["train", "--net"]])
@pytest.mark.parametrize("sort", ["device", "pipe", "large", "bytes"])
def test_what_is_no_text_file(tmp_path: Path, sort: str, command: list[str]) -> None:
    path = tmp_path / "file.yaml"
    if sort == "device":
        path.symlink_to("/dev/zero")
    elif sort == "pipe":
        os.mkfifo(path)
    elif sort == "large":
        with open(path, "wb") as file:
            file.truncate(65 << 20)
    else:
        path.write_bytes(b"net: \xff\n")
    found = {
        "device": "found: a device, not a file",
        "pipe": "found: a pipe, not a file",
        "large": "found: 68,157,440 bytes",
        "bytes": "the file is not UTF-8 text",
    }
    out = ["--out", str(tmp_path / "out")] if command[0] == "train" else []
    refused(tmp_path, [*command, str(path), *out], [found[sort]])


def test_a_prototxt_that_never_ends(tmp_path: Path) -> None:
    path = tmp_path / "net.prototxt"
    path.symlink_to("/dev/zero")
    refused(tmp_path, ["check", str(path)], ["a device, not a file"])


def test_every_job_reads_back(tmp_path: Path) -> None:
    job = Job(
        net="1e5",
        data="0o7",
        weights="010, \u2028 'x': #y",
        lr=1e-5,
        mean=(0.5, 1e30),
        parallel="pipeline=2,cut=no",
        devices="cpu:0-1",
        mirror=True,
    )
    path = tmp_path / "job.yaml"
    path.write_text(job_text(job), encoding="utf-8")
    assert merge(read_options(path)) == job


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
