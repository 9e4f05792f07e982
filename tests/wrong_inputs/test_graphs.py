"""What users get wrong in graph files, through the real entry point."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.wrong_inputs.refused import refused

X = "- {type: blob, name: x, size: [2, 3]}\n"
SEVEN = "- {type: blob, name: w, size: [7, 4]}\n"

GRAPHS: dict[str, tuple[str | bytes, list[str]]] = {
    "syntax error": (
        "- {type: blob, name: x\n- {type: op}\n",
        ["net.yaml:2", "the text is not YAML", "expected: a list of entries", "found: "],
    ),
    "tab": (
        "- type: blob\n\tname: x\n",
        ["net.yaml:2:1", "the text is not YAML", "found: "],
    ),
    "empty file": ("", ["net.yaml:1", "the text is empty", "expected: a list of entries"]),
    "a mapping": (
        "net: lenet\n",
        ["net.yaml:1", "a graph is a list of entries", "found: a mapping (a job file?)", "train"],
    ),
    "not UTF-8": (
        X.encode() + b"- {type: blob, name: \xff}\n",
        ["net.yaml:2", "not UTF-8", "found: the byte 0xff"],
    ),
    "unknown entry type": (
        X + "- {type: blobb, name: y}\n",
        ["net.yaml:2", "'blobb' is no type of entry", "expected: one of blob, op", "'blob'?"],
    ),
    "unknown key": (
        "- {type: blob, name: x, sise: [2]}\n",
        ["net.yaml:1", "'sise' is no key of a blob entry", "did you mean 'size'?"],
    ),
    "missing key": (
        "- {type: op, op_type: Relu, inputs: [], outputs: []}\n",
        ["net.yaml:1", "an op entry has no 'name'", "expected: the key 'name'", "found: the keys"],
    ),
    "unknown kind": (
        X + "- {type: op, op_type: Relux, name: r, inputs: [x], outputs: [y]}\n",
        ["net.yaml:2", "op 'r' at host 127.0.0.1, cpu:0", "unknown kind 'Relux'", "mean Relu"],
    ),
    "unknown attribute": (
        X + "- {type: op, op_type: Relu, name: r, inputs: [x], outputs: [y], slop: 1}\n",
        ["net.yaml:2", "op 'r' (Relu)", "unknown attribute 'slop'", "expected: attributes of Relu"],
    ),
    "wrong attribute type": (
        X + "- {type: op, op_type: Softmax, name: s, inputs: [x], outputs: [y], axis: one}\n",
        ["net.yaml:2", "op 's' (Softmax)", "axis = 'one'", "a whole number", "found: str 'one'"],
    ),
    "attribute out of range": (
        X + "- {type: op, op_type: Dropout, name: d, inputs: [x], outputs: [y], ratio: 1.5}\n",
        ["net.yaml:2", "op 'd' (Dropout)", "ratio is 1.5", "at least 0 and below 1"],
    ),
    "attribute not among the choices": (
        "- {type: blob, name: x, size: [1, 1, 4, 4]}\n"
        "- {type: op, op_type: Pool, name: p, inputs: [x], outputs: [y], kernel: 2, method: min}\n",
        [
            "net.yaml:2",
            "op 'p' (Pool)",
            "method = 'min'",
            "one of max, average",
            "found: str 'min'",
        ],
    ),
    "missing attribute": (
        "- {type: blob, name: x, size: [1, 1, 4, 4]}\n"
        "- {type: op, op_type: Pool, name: p, inputs: [x], outputs: [y]}\n",
        ["net.yaml:2", "op 'p' (Pool)", "has no attribute kernel", "expected: kernel"],
    ),
    "missing blob": (
        X + "- {type: op, op_type: Relu, name: r, inputs: [xx], outputs: [y]}\n",
        ["net.yaml:2", "op 'r' reads blob 'xx', which nothing declares", "did you mean 'x'?"],
    ),
    "too many inputs": (
        X + "- {type: op, op_type: Relu, name: r, inputs: [x, x], outputs: [y]}\n",
        ["net.yaml:2", "op 'r' (Relu)", "has 2 inputs", "expected: 1 (x)", "found: x, x"],
    ),
    "too many outputs": (
        X + "- {type: op, op_type: Relu, name: r, inputs: [x], outputs: [y, z]}\n",
        ["net.yaml:2", "op 'r' (Relu)", "has 2 outputs", "expected: 1", "found: y, z"],
    ),
    "two producers": (
        X
        + "- {type: op, op_type: Relu, name: a, inputs: [x], outputs: [y]}\n"
        + "- {type: op, op_type: Relu, name: b, inputs: [x], outputs: [y]}\n",
        ["net.yaml:3", "ops 'a' and 'b' both write blob 'y'", "one producer", "net.yaml:2"],
    ),
    "cycle": (
        "- {type: blob, name: x, size: [2]}\n- {type: blob, name: y, size: [2]}\n"
        "- {type: op, op_type: Relu, name: a, inputs: [x], outputs: [y]}\n"
        "- {type: op, op_type: Relu, name: b, inputs: [y], outputs: [x]}\n",
        ["net.yaml:3", "the graph has a cycle: a -> 'y' -> b -> 'x' -> a", "a state"],
    ),
    "shapes that do not fit": (
        X + SEVEN + "- {type: op, op_type: InnerProduct, name: fc, inputs: [x, w], outputs: [y]}\n",
        ["net.yaml:3", "op 'fc' (InnerProduct)", "x: float32 [2, 3]", "w: float32 [7, 4]"],
    ),
    "a declared shape that differs": (
        X
        + "- {type: blob, name: y, size: [2, 4]}\n"
        + "- {type: op, op_type: Relu, name: r, inputs: [x], outputs: [y]}\n",
        ["net.yaml:2", "blob 'y'", "op 'r' (Relu)", "expected: size [2, 3]", "found: size [2, 4]"],
    ),
    "dtype mismatch": (
        X
        + "- {type: blob, name: y, size: [2, 3], dtype: float64}\n"
        + "- {type: op, op_type: Relu, name: r, inputs: [x], outputs: [y]}\n",
        ["net.yaml:2", "blob 'y'", "op 'r'", "expected: dtype float32", "found: dtype float64"],
    ),
    "unknown dtype": (
        "- {type: blob, name: x, size: [2], dtype: flaot32}\n",
        ["net.yaml:1", "blob 'x' has the dtype 'flaot32'", "expected: one of ", "'float32'"],
    ),
    "wrong location": (
        X
        + "- {type: op, op_type: Relu, name: r, inputs: [x], outputs: [y],"
        + " location: {device: cpu:1}}\n",
        [
            "net.yaml:2",
            "op 'r' at host 127.0.0.1, cpu:1 reads 'x' at host 127.0.0.1, cpu:0",
            "insert a Copy",
        ],
    ),
    "bad device name": (
        "- {type: blob, name: x, size: [2], location: {device: gpu0}}\n",
        ["net.yaml:1", "wrong 'device'", "cpu:K or cuda:K", "found: the text 'gpu0'"],
    ),
    "bad lane": (
        X + "- {type: op, op_type: Relu, name: r, inputs: [x], outputs: [y], thread: fast}\n",
        ["net.yaml:2", "wrong 'thread'", "compute:K", "found: the text 'fast'"],
    ),
    "blob declared twice": (
        X + X,
        ["net.yaml:2", "blob 'x' is declared twice", "every name once", "first at", "net.yaml:1"],
    ),
    "op declared twice": (
        X
        + "- {type: op, op_type: Relu, name: r, inputs: [x], outputs: [y]}\n"
        + "- {type: op, op_type: Relu, name: r, inputs: [x], outputs: [z]}\n",
        ["net.yaml:3", "op 'r' is declared twice", "net.yaml:2"],
    ),
    "negative size": (
        "- {type: blob, name: x, size: [2, -3]}\n",
        ["net.yaml:1", "'size' with a wrong item", "from 0 up", "found: the integer -3"],
    ),
    "no size": (
        "- {type: blob, name: x}\n",
        ["net.yaml:1", "blob 'x' has no shape, and no op produces it", "expected: a shape"],
    ),
    "state without a blob": (
        X + "- {type: state, blob: w}\n",
        ["net.yaml:2", "state 'w' has the read blob 'w', which nothing declares", "found: 'w'"],
    ),
    "state carried on by another shape": (
        X
        + "- {type: blob, name: n, size: [6]}\n- {type: state, blob: x, next: n}\n"
        + "- {type: op, op_type: Flatten, name: f, inputs: [x], outputs: [n], axis: 0}\n",
        ["net.yaml:3", "state 'x' and its next blob 'n' differ", "shape (2, 3)", "shape (6,)"],
    ),
    "output that does not exist": (
        X + "- {type: output, blob: loss}\n",
        ["output 'loss' is no blob of the graph", "found: 'loss'"],
    ),
    "control edge to nowhere": (
        X
        + "- {type: op, op_type: Relu, name: r, inputs: [x], outputs: [y]}\n"
        + "- {type: control, before: r, after: q}\n",
        ["control edge 'r' -> 'q' names 'q', which is no op", "found: 'q'"],
    ),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_wrong_graphs(tmp_path: Path, name: str) -> None:
    content, texts = GRAPHS[name]
    file = tmp_path / "net.yaml"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    refused(tmp_path, ["check", str(file)], texts)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    missing = str(tmp_path / "none.yaml")
    refused(tmp_path, ["check", missing], [missing, "No such file", "expected: the path"])
    refused(tmp_path, ["check", str(tmp_path)], [str(tmp_path), "found: Is a directory"])


@pytest.mark.parametrize("text", ["", "# nothing\n", 'name: "a"\n'])
def test_a_caffe_net_without_layers(tmp_path: Path, text: str) -> None:
    file, out = tmp_path / "net.prototxt", tmp_path / "out"
    file.write_text(text)
    found = "found: name" if "name" in text else "found: an empty text"
    texts = ["net.prototxt:1: the net has no layers", found]
    for command in ("check", "show", f"import caffe -o {out}", f"train --out {out} --net"):
        refused(tmp_path, [*command.split(), str(file)], texts)


def test_an_image_size_where_there_is_no_use_for_one(tmp_path: Path) -> None:
    file = tmp_path / "net.yaml"
    file.write_text(X)
    for arguments in (["show", str(file)], ["check", str(file)], ["show", "--net", "gpt2"]):
        texts = [f"--image does not go with {' '.join(arguments[1:])}", "leave --image out"]
        refused(tmp_path, [*arguments, "--image", "3,32,32"], texts)
    wrong = ["show", "--net", "lenet", "--image", "0,32,32"]
    refused(tmp_path, wrong, ["--image is '0,32,32'", "each 1 or more"])
