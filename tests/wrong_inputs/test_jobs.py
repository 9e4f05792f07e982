"""What users get wrong in job files and nets, through the real entry point."""

from __future__ import annotations

import os
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
        ["job.yaml:1: pipeline is 100000000", "4096 or fewer"],
    ),
    "a schedule without end": (
        "parallel: {pipeline: 4096, micro: 4096}\n",
        ["job.yaml:1", "the schedule of the pipeline is too large", "4096 * 4096 * 1"],
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
    monkeypatch.setattr("purine.machine.capacity.available_memory", lambda device: 5_000_000)
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


BIG = "9" * 400


def too_large(found: str) -> str:
    expected = "a number that fits, or .inf"
    return f"job.yaml:1: the number is too large\n  expected: {expected}\n  found: {found}"


VALUES: dict[str, list[tuple[str, str]]] = {
    "batch": [
        ("0", "job.yaml:1: batch is 0"),
        ("-1", "job.yaml:1: batch is -1"),
        ("1.5", "job.yaml:1: batch is 1.5"),
        ("many", "job.yaml:1: batch is text 'many'"),
        ("[8]", "job.yaml:1: batch is list (8,)"),
        ("{a: 8}", "job.yaml:1: batch is mapping {'...': '...'}"),
        ("true", "job.yaml:1: batch is bool True"),
        ("1e400", too_large("batch: 1e400")),
        (BIG, too_large("batch: 9999")),
    ],
    "epochs": [
        ("-3", "job.yaml:1: epochs is -3"),
        ("1.5", "job.yaml:1: epochs is 1.5"),
        ("'2'", "job.yaml:1: epochs is text '2'"),
        ("[1]", "job.yaml:1: epochs is list (1,)"),
        ("false", "job.yaml:1: epochs is bool False"),
        (BIG, too_large("epochs: 9999")),
    ],
    "iters": [
        ("-1", "job.yaml:1: iters is -1"),
        (".nan", "job.yaml:1: iters is nan"),
        ("ten", "job.yaml:1: iters is text 'ten'"),
        ("[]", "job.yaml:1: iters is list ()"),
        (BIG, too_large("iters: 9999")),
        (".inf", "job.yaml:1: iters is inf"),
    ],
    "net": [
        ("5", "job.yaml:1: net is 5"),
        ("[mlp]", "job.yaml:1: net is list ('mlp',)"),
        ("true", "job.yaml:1: net is bool True"),
        ("''", "job.yaml:1: net is ''"),
        ("lenett", "there is no net 'lenett'"),
        ("none.yaml", "none.yaml: cannot read the graph"),
        ("1.5", "job.yaml:1: net is 1.5"),
    ],
    "solver": [
        ("7", "job.yaml:1: solver is 7"),
        ("sgdd", "there is no solver 'sgdd'"),
        ("[sgd]", "job.yaml:1: solver is list ('sgd',)"),
        ("''", "job.yaml:1: solver is ''"),
        ("none.prototxt", "none.prototxt: cannot read the file"),
    ],
    "data": [
        ("5", "job.yaml:1: data is 5"),
        ("[a]", "job.yaml:1: data is list ('a',)"),
        ("''", "job.yaml:1: data is ''"),
        ("fashion-mimi", "there is no data set 'fashion-mimi'"),
        ("none/none", "none/none: there is no such file or folder"),
        ("synthetic:count=x", "synthetic:count=x: option 'count' cannot be read"),
    ],
    "lr": [
        ("0", "job.yaml:1: lr is 0"),
        ("-1", "job.yaml:1: lr is -1"),
        ("fast", "job.yaml:1: lr is text 'fast'"),
        (".nan", "job.yaml:1: lr is nan"),
        (".inf", "job.yaml:1: lr is inf"),
        ("[0.1]", "job.yaml:1: lr is list (0.1,)"),
        ("true", "job.yaml:1: lr is bool True"),
        (BIG, too_large("lr: 9999")),
    ],
    "momentum": [
        ("-0.1", "job.yaml:1: momentum is -0.1"),
        ("1.0", "momentum is 1.0"),
        (".nan", "job.yaml:1: momentum is nan"),
        ("heavy", "job.yaml:1: momentum is text 'heavy'"),
    ],
    "weight_decay": [
        ("-1", "job.yaml:1: weight_decay is -1"),
        (".inf", "job.yaml:1: weight_decay is inf"),
        ("some", "job.yaml:1: weight_decay is text 'some'"),
    ],
    "lr_policy": [
        ("5", "job.yaml:1: lr_policy is 5"),
        ("stepp", "there is no learning-rate policy 'stepp'"),
        ("step", "policy 'step' needs step"),
        ("''", "job.yaml:1: lr_policy is ''"),
        ("step:step=0", "step is 0"),
    ],
    "clip": [
        ("0", "job.yaml:1: clip is 0"),
        ("-1", "job.yaml:1: clip is -1"),
        ("no", "found: clip: no\n  to do: write true or false, or quote it"),
    ],
    "accumulate": [
        ("0", "job.yaml:1: accumulate is 0"),
        ("x", "job.yaml:1: accumulate is text 'x'"),
    ],
    "seed": [
        ("-1", "job.yaml:1: seed is -1"),
        ("1.5", "job.yaml:1: seed is 1.5"),
        ("any", "job.yaml:1: seed is text 'any'"),
        (BIG, too_large("seed: 9999")),
    ],
    "devices": [
        ("0", "job.yaml:1: devices is 0"),
        ("gpu", "job.yaml:1: devices are 'gpu'"),
        ("'cpu:0,cpu:0'", "job.yaml:1: device cpu:0 is named twice"),
        ("[cpu:0]", "job.yaml:1: devices is list ('cpu:0',)"),
        ("''", "job.yaml:1: devices is ''"),
        ("cpu:9", "job.yaml:1: device cpu:9 cannot be used"),
    ],
    "parallel": [
        ("2", "job.yaml:1: parallel is 2"),
        ("two", "job.yaml:1: 'two' is no setting of a scheme"),
        ("{data: 0}", "job.yaml:1: data is 0"),
        ("{data: two}", "job.yaml:1: data is 'two'"),
        ("{dta: 2}", "job.yaml:1: there is no setting 'dta' of parallelism"),
        ("{data: 2, data: 2}", "job.yaml:1: data is given twice"),
        ("[a]", "job.yaml:1: parallel is list ('a',)"),
        ("{micro: 5000000}", "job.yaml:1: micro is 5000000"),
    ],
    "threads": [
        ("0", "job.yaml:1: threads is 0"),
        ("-1", "job.yaml:1: threads is -1"),
        ("all", "job.yaml:1: threads is text 'all'"),
        ("1000000", "job.yaml:1: threads is 1000000"),
    ],
    "share_cores": [
        ("1", "job.yaml:1: share_cores is 1"),
        ("maybe", "job.yaml:1: share_cores is text 'maybe'"),
    ],
    "prefetch": [
        ("-1", "job.yaml:1: prefetch is -1"),
        ("1000000000", "job.yaml:1: prefetch is 1000000000"),
        ("x", "job.yaml:1: prefetch is text 'x'"),
    ],
    "out": [
        ("5", "job.yaml:1: out is 5"),
        ("[a]", "job.yaml:1: out is list ('a',)"),
        ('"a\\0b"', "a\x00b: the folder of the run cannot be used"),
    ],
    "keep": [
        ("0", "job.yaml:1: keep is 0"),
        ("x", "job.yaml:1: keep is text 'x'"),
    ],
    "trace": [
        ("1", "job.yaml:1: trace is 1"),
        ("'yes'", "job.yaml:1: trace is text 'yes'"),
    ],
    "mean": [
        ("red", "job.yaml:1: mean is text 'red'"),
        ("[]", "0 means are given for images of [1, 28, 28]"),
        ("[1, a]", "job.yaml:1: mean is list (1, 'a')"),
        (".nan", "job.yaml:1: mean is nan"),
        ("[.inf]", "job.yaml:1: mean is (inf,)"),
        ("{a: 1}", "job.yaml:1: mean is mapping {'...': '...'}"),
    ],
    "scale": [
        ("0", "job.yaml:1: scale is 0"),
        (".inf", "job.yaml:1: scale is inf"),
        ("x", "job.yaml:1: scale is text 'x'"),
    ],
    "crop": [
        ("0", "job.yaml:1: crop is 0"),
        ("99", "a crop of 99 cannot be cut from images of 28 x 28 with p"),
        ("x", "job.yaml:1: crop is text 'x'"),
    ],
    "pad": [
        ("3", "pad is 3, and there is no crop"),
        ("-1", "job.yaml:1: pad is -1"),
    ],
    "mirror": [
        ("1", "job.yaml:1: mirror is 1"),
        ("both", "job.yaml:1: mirror is text 'both'"),
    ],
    "layout": [
        ("nhwc", "job.yaml:1: layout is text 'nhwc'"),
        ("3", "job.yaml:1: layout is 3"),
    ],
    "precision": [
        ("half", "job.yaml:1: precision is text 'half'"),
        ("16", "job.yaml:1: precision is 16"),
    ],
    "compress": [
        ("zip", "job.yaml:1: compress is text 'zip'"),
        ("8", "job.yaml:1: compress is 8"),
    ],
    "compile": [
        ("1", "job.yaml:1: compile is 1"),
        ("perhaps", "job.yaml:1: compile is text 'perhaps'"),
    ],
    "weights": [
        ("5", "job.yaml:1: weights is 5"),
        ("none.safetensors", "none.safetensors: cannot read the file"),
    ],
}
"""By key the values that it cannot have, and the beginning of the message."""

TEXTS: dict[str, tuple[str | bytes, str]] = {
    "a single word": ("lenet\n", "job.yaml:1: a job file is a mapping"),
    "a number": ("5\n", "job.yaml:1: a job file is a mapping"),
    "a list of lists": ("- [a]\n", "job.yaml:1: a job file is a mapping"),
    "a NUL": ("net: a\x00b\n", "job.yaml:1: the text has a character that YAML does not allow"),
    "not UTF-8": (b"net: \xff\xfe\n", "job.yaml:1: the file is not UTF-8 text"),
    "a key that is a list": ("[a]: 3\n", "job.yaml:1: a key is not a word"),
    "a key that is nothing": ("~: 3\n", "job.yaml:1: a key is not a word"),
    "a tab": ("net:\tmlp\n\tbatch: 3\n", "job.yaml:2:1: the text is not YAML"),
    "two documents": ("net: mlp\n---\nnet: lenet\n", "job.yaml:2: the text goes on"),
    "an unknown tag": ("net: !!python/object:os.system ls\n", "job.yaml:1: the value has a tag"),
    "an alias without an anchor": ("net: *mlp\n", "job.yaml:1: the alias *mlp stands for nothing"),
    "a quote that stays open": ("net: 'mlp\n", "job.yaml:2:1: the text is not YAML"),
    "a key in capitals": ("NET: mlp\n", "job.yaml:1: there is no option 'NET'"),
    "epochs and iters": ("epochs: 1\niters: 2\n", "both epochs and iters are given"),
    "mean and mean_file": (
        "mean: 1\nmean_file: a.binaryproto\n",
        "both mean and mean_file are given",
    ),
    "a graph": ("- {type: blob, name: x, size: [2]}\n", "job.yaml:1: a job file is a mapping"),
    "a prototxt": ('name: "LeNet"\nlayer { name: "a" }\n', "job.yaml:2:19: the text is not YAML"),
    "JSON with a comma too many": ('{"net": "mlp",,}\n', "job.yaml:1:15: the text is not YAML"),
}


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [(key, *case) for key, cases in VALUES.items() for case in cases],
    ids=[f"{key} {value[:20]}" for key, cases in VALUES.items() for value, _ in cases],
)
def test_wrong_values(
    tmp_path: Path, key: str, value: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    job = tmp_path / "job.yaml"
    job.write_text(f"{key}: {value}\n")
    out = [] if key == "out" else ["--out", str(tmp_path / "out")]
    refused(tmp_path, ["train", job, *out], [text])


@pytest.mark.parametrize("name", TEXTS)
def test_texts_that_are_no_jobs(tmp_path: Path, name: str) -> None:
    content, text = TEXTS[name]
    job = tmp_path / "job.yaml"
    job.write_bytes(content if isinstance(content, bytes) else content.encode())
    refused(tmp_path, ["train", job, "--out", tmp_path / "out"], [text])
