"""What users get wrong in graph files, through the real entry point."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.command import call
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


NET = """\
- {type: blob, name: data, size: [8, 1, 28, 28]}
- {type: blob, name: label, size: [8], dtype: int64}
- {type: blob, name: w, size: [10, 784]}
- {type: blob, name: b, size: [10]}
- {type: state, blob: w, trainable: true, filler: {type: xavier}}
- {type: state, blob: b, trainable: true, lr_mult: 2.0}
- {type: op, op_type: Data, name: data, inputs: [], outputs: [data, label]}
- {type: op, op_type: Flatten, name: flat, inputs: [data], outputs: [x]}
- {type: op, op_type: InnerProduct, name: fc, inputs: [x, w, b], outputs: [y]}
- {type: op, op_type: SoftmaxLoss, name: loss, inputs: [y, label], outputs: [loss]}
- {type: output, blob: loss}
"""
BIG = "9" * 400
FITS = "  expected: a number that fits, or .inf\n  found: "

CHANGES: dict[str, tuple[str, str, str]] = {
    "an entry without a type": (
        "{type: output, blob",
        "{blob",
        "net.yaml:11: an entry has no 'type'",
    ),
    "an entry type in capitals": (
        "type: output",
        "type: Output",
        "net.yaml:11: 'Output' is no type of entry",
    ),
    "an entry type that is a number": (
        "type: output",
        "type: 3",
        "net.yaml:11: an entry has a 'type' that is not text",
    ),
    "an entry type that is a list": (
        "type: output",
        "type: [output]",
        "net.yaml:11: an entry has a 'type' that is not text",
    ),
    "an entry type that is nothing": (
        "type: output",
        "type: ~",
        "net.yaml:11: an entry has a 'type' that is not text",
    ),
    "an entry that is a list": (
        "- {type: output, blob: loss}",
        "- [output, loss]",
        "net.yaml:11: an entry is not a mapping",
    ),
    "an entry that is a word": (
        "- {type: output, blob: loss}",
        "- output",
        "net.yaml:11: an entry is not a mapping",
    ),
    "an entry that is a number": (
        "- {type: output, blob: loss}",
        "- 7",
        "net.yaml:11: an entry is not a mapping",
    ),
    "an entry that is nothing": (
        "- {type: output, blob: loss}",
        "- ~",
        "net.yaml:11: an entry is not a mapping",
    ),
    "an empty entry": (
        "- {type: output, blob: loss}",
        "- {}",
        "net.yaml:11: an entry has no 'type'",
    ),
    "a key twice in an entry": (
        "{type: output, blob: loss}",
        "{type: output, blob: loss, blob: y}",
        "net.yaml:11: an entry has the key 'blob' twice",
    ),
    "a key that is a number": (
        "{type: output, blob: loss}",
        "{type: output, 3: loss}",
        "net.yaml:11: an entry has a key that is not text",
    ),
    "a key that is a list": (
        "{type: output, blob: loss}",
        "{type: output, [a]: loss}",
        "net.yaml:11: an entry has a key that is not text",
    ),
    "a bracket that stays open": (
        "outputs: [x]}",
        "outputs: [x}",
        "net.yaml:8:71: the text is not YAML",
    ),
    "a quote that stays open": ("name: flat", "name: 'flat", "net.yaml:12:1: the text is not YAML"),
    "an unknown tag": (
        "name: flat",
        "name: !!python/object:os.system flat",
        "net.yaml:8: the value has a tag",
    ),
    "an alias without an anchor": (
        "name: flat",
        "name: *flat",
        "net.yaml:8: the alias *flat stands for nothing",
    ),
    "two documents": (
        "- {type: output, blob: loss}",
        "---\n- {type: output, blob: loss}",
        "net.yaml:11: the text goes on",
    ),
    "a control character": (
        "name: flat",
        "name: fl\x07at",
        "net.yaml:8: the text has a character that YAML does not",
    ),
    "a NUL": (
        "name: flat",
        "name: fl\x00at",
        "net.yaml:8: the text has a character that YAML does not",
    ),
    "a merge key": (
        "{type: output, blob: loss}",
        "{<<: {type: output}, blob: loss}",
        "net.yaml:11: an entry has no 'type'",
    ),
    "a blob without a name": ("name: b, ", "", "net.yaml:4: a blob entry has no 'name'"),
    "a blob with an empty name": (
        "{type: blob, name: b,",
        "{type: blob, name: '',",
        "net.yaml:4: a blob entry has a 'name' that is empty",
    ),
    "a blob with a number for a name": (
        "{type: blob, name: b,",
        "{type: blob, name: 5,",
        "net.yaml:4: a blob entry has a 'name' that is not text",
    ),
    "a blob with a list for a name": (
        "{type: blob, name: b,",
        "{type: blob, name: [b],",
        "net.yaml:4: a blob entry has a 'name' that is not text",
    ),
    "a blob with a truth for a name": (
        "{type: blob, name: b,",
        "{type: blob, name: true,",
        "net.yaml:4: a blob entry has a 'name' that is not text",
    ),
    "a size that is a number": (
        "size: [10]",
        "size: 10",
        "net.yaml:4: a blob entry has a 'size' that is not a list",
    ),
    "a size that is a word": (
        "size: [10]",
        "size: ten",
        "net.yaml:4: a blob entry has a 'size' that is not a list",
    ),
    "a size that is a mapping": (
        "size: [10]",
        "size: {n: 10}",
        "net.yaml:4: a blob entry has a 'size' that is not a list",
    ),
    "a size with a word": (
        "size: [10]",
        "size: [ten]",
        "net.yaml:4: a blob entry has a 'size' with a wrong item",
    ),
    "a size with a fraction": (
        "size: [10]",
        "size: [10.5]",
        "net.yaml:4: a blob entry has a 'size' with a wrong item",
    ),
    "a size with a truth": (
        "size: [10]",
        "size: [true]",
        "net.yaml:4: a blob entry has a 'size' with a wrong item",
    ),
    "a size with nothing": (
        "size: [10]",
        "size: [~]",
        "net.yaml:4: a blob entry has a 'size' with a wrong item",
    ),
    "a size inside a size": (
        "size: [10]",
        "size: [[10]]",
        "net.yaml:4: a blob entry has a 'size' with a wrong item",
    ),
    "a size beyond all memory": (
        "size: [10]",
        "size: [9223372036854775808]",
        "net.yaml:4: blob 'b' is larger than a tensor can be",
    ),
    "a size of 400 digits": (
        "size: [10]",
        f"size: [{BIG}]",
        f"net.yaml:4: the number is too large\n{FITS}size: 9999",
    ),
    "a size whose product overflows": (
        "size: [10, 784]",
        "size: [4611686018427387904, 784]",
        "net.yaml:3: blob 'w' is larger than a tensor can be",
    ),
    "more dimensions than there can be": (
        "size: [10]",
        "size: [" + "1, " * 5000 + "1]",
        "net.yaml:4: blob 'b' is larger than a tensor can be",
    ),
    "a dtype that is a number": (
        "dtype: int64",
        "dtype: 64",
        "net.yaml:2: a blob entry has a 'dtype' that is not text",
    ),
    "a dtype in capitals": (
        "dtype: int64",
        "dtype: INT64",
        "net.yaml:2: blob 'label' has the dtype 'INT64'",
    ),
    "a dtype of numpy's": (
        "dtype: int64",
        "dtype: uint64",
        "net.yaml:2: blob 'label' has the dtype 'uint64'",
    ),
    "an empty dtype": (
        "dtype: int64",
        "dtype: ''",
        "net.yaml:2: a blob entry has a 'dtype' that is empty",
    ),
    "a layout that is unknown": (
        "size: [8, 1, 28, 28]",
        "size: [8, 1, 28, 28], layout: channels-first",
        "net.yaml:1: blob 'data' has the layout 'channels-first'",
    ),
    "a layout of a vector": (
        "size: [10]}",
        "size: [10], layout: channels-last}",
        "net.yaml:4: blob 'b' of 1 dimensions is channels-last",
    ),
    "a layout that is a number": (
        "size: [8, 1, 28, 28]",
        "size: [8, 1, 28, 28], layout: 4",
        "net.yaml:1: a blob entry has a 'layout' that is not text",
    ),
    "a device without a number": (
        "size: [10]}",
        "size: [10], location: {device: cpu}}",
        "net.yaml:4: a location has a wrong 'device'",
    ),
    "a device with a negative number": (
        "size: [10]}",
        "size: [10], location: {device: 'cpu:-1'}}",
        "net.yaml:4: a location has a wrong 'device'",
    ),
    "a device in capitals": (
        "size: [10]}",
        "size: [10], location: {device: 'CPU:0'}}",
        "net.yaml:4: a location has a wrong 'device'",
    ),
    "a location that is a word": (
        "size: [10]}",
        "size: [10], location: here}",
        "net.yaml:4: a location is not a mapping",
    ),
    "an unknown key of a location": (
        "size: [10]}",
        "size: [10], location: {rack: 3}}",
        "net.yaml:4: 'rack' is no key of a location",
    ),
    "an empty host": (
        "size: [10]}",
        "size: [10], location: {ip: ''}}",
        "net.yaml:4: a location has a 'ip' that is empty",
    ),
    "a host that is a number": (
        "size: [10]}",
        "size: [10], location: {ip: 12}}",
        "net.yaml:4: a location has a 'ip' that is not text",
    ),
    "a blob that nothing reads or writes": (
        "- {type: output",
        "- {type: blob, name: lone}\n- {type: output",
        "net.yaml:11: blob 'lone' has no shape, and no op produce",
    ),
    "a state without a blob": (
        "{type: state, blob: b, ",
        "{type: state, ",
        "net.yaml:6: a state entry has no 'blob'",
    ),
    "a state of a number": (
        "{type: state, blob: b,",
        "{type: state, blob: 3,",
        "net.yaml:6: a state entry has a 'blob' that is not text",
    ),
    "a state twice": (
        "- {type: output",
        "- {type: state, blob: b}\n- {type: output",
        "net.yaml:11: state of blob 'b' is declared twice",
    ),
    "a state that an op writes": (
        "- {type: output",
        "- {type: state, blob: x}\n- {type: output",
        "net.yaml:8: op 'flat' writes blob 'x', which is a state",
    ),
    "a state with the next of another": (
        "blob: b, trainable: true",
        "blob: b, next: w, trainable: true",
        "net.yaml:6: states 'w' and 'b' have the same next blob '",
    ),
    "a state carried on by nothing": (
        "blob: b, trainable: true",
        "blob: b, next: c, trainable: true",
        "net.yaml:6: state 'b' has the next blob 'c', which nothi",
    ),
    "a state carried on by what no op writes": (
        "blob: b, trainable: true",
        "blob: b, next: label, trainable: true",
        "net.yaml:6: state 'b' and its next blob 'label' differ i",
    ),
    "trainable that is a word": (
        "blob: b, trainable: true",
        "blob: b, trainable: maybe",
        "net.yaml:6: a state entry has a 'trainable' that is neit",
    ),
    "trainable that is a number": (
        "blob: b, trainable: true",
        "blob: b, trainable: 1",
        "net.yaml:6: a state entry has a 'trainable' that is neit",
    ),
    "an unknown key of a state": (
        "lr_mult: 2.0",
        "lr_mul: 2.0",
        "net.yaml:6: 'lr_mul' is no key of a state entry",
    ),
    "lr_mult that is not a number": (
        "lr_mult: 2.0",
        "lr_mult: .nan",
        "net.yaml:6: state 'b' has lr_mult nan",
    ),
    "lr_mult without end": (
        "lr_mult: 2.0",
        "lr_mult: .inf",
        "net.yaml:6: state 'b' has lr_mult inf",
    ),
    "lr_mult below 0": ("lr_mult: 2.0", "lr_mult: -1", "net.yaml:6: state 'b' has lr_mult -1.0"),
    "lr_mult of words": (
        "lr_mult: 2.0",
        "lr_mult: twice",
        "net.yaml:6: a state entry has a 'lr_mult' that is not a",
    ),
    "lr_mult of 400 digits": (
        "lr_mult: 2.0",
        f"lr_mult: {BIG}",
        f"net.yaml:6: the number is too large\n{FITS}lr_mult: 9999",
    ),
    "decay_mult that is not a number": (
        "lr_mult: 2.0",
        "decay_mult: .nan",
        "net.yaml:6: state 'b' has decay_mult nan",
    ),
    "decay_mult without end": (
        "lr_mult: 2.0",
        "decay_mult: -.inf",
        "net.yaml:6: state 'b' has decay_mult -inf",
    ),
    "decay_mult below 0": (
        "lr_mult: 2.0",
        "decay_mult: -0.5",
        "net.yaml:6: state 'b' has decay_mult -0.5",
    ),
    "decay_mult that is a list": (
        "lr_mult: 2.0",
        "decay_mult: [1]",
        "net.yaml:6: a state entry has a 'decay_mult' that is not",
    ),
    "an unknown filler": (
        "type: xavier",
        "type: xavierr",
        "net.yaml:5: the filler of blob 'w' at host 127.0.0.1, cp",
    ),
    "a filler without a type": (
        "{type: xavier}",
        "{value: 1}",
        "net.yaml:5: a filler has no 'type'",
    ),
    "a filler that is a word": (
        "{type: xavier}",
        "xavier",
        "net.yaml:5: a filler is not a mapping",
    ),
    "a filler that is nothing": ("{type: xavier}", "~", "net.yaml:5: a filler is not a mapping"),
    "an unknown setting of a filler": (
        "{type: xavier}",
        "{type: xavier, scale: 3}",
        "net.yaml:5: the filler of blob 'w' at host 127.0.0.1, cp",
    ),
    "a filler's setting of words": (
        "{type: xavier}",
        "{type: constant, value: one}",
        "net.yaml:5: the filler of blob 'w' at host 127.0.0.1, cp",
    ),
    "a filler's deviation below 0": (
        "{type: xavier}",
        "{type: gaussian, std: -1}",
        "net.yaml:5: the filler of blob 'w' at host 127.0.0.1, cp",
    ),
    "a filler's bounds backwards": (
        "{type: xavier}",
        "{type: uniform, min: 1, max: -1}",
        "net.yaml:5: the filler of blob 'w' at host 127.0.0.1, cp",
    ),
    "an op without a kind": ("op_type: Flatten, ", "", "net.yaml:8: an op entry has no 'op_type'"),
    "an op without inputs": ("inputs: [data], ", "", "net.yaml:8: an op entry has no 'inputs'"),
    "an op without outputs": (", outputs: [x]", "", "net.yaml:8: an op entry has no 'outputs'"),
    "an op with a number for a kind": (
        "op_type: Flatten",
        "op_type: 5",
        "net.yaml:8: an op entry has a 'op_type' that is not text",
    ),
    "an op with an empty kind": (
        "op_type: Flatten",
        "op_type: ''",
        "net.yaml:8: an op entry has a 'op_type' that is empty",
    ),
    "an op with an empty name": (
        "name: flat",
        "name: ''",
        "net.yaml:8: an op entry has a 'name' that is empty",
    ),
    "an op with a number for a name": (
        "name: flat",
        "name: 8",
        "net.yaml:8: an op entry has a 'name' that is not text",
    ),
    "inputs that are a word": (
        "inputs: [data]",
        "inputs: data",
        "net.yaml:8: an op entry has a 'inputs' that is not a lis",
    ),
    "inputs that are a mapping": (
        "inputs: [data]",
        "inputs: {x: data}",
        "net.yaml:8: an op entry has a 'inputs' that is not a lis",
    ),
    "inputs with a number": (
        "inputs: [data]",
        "inputs: [1]",
        "net.yaml:8: an op entry has an item in 'inputs' that is",
    ),
    "inputs with a list": (
        "inputs: [data]",
        "inputs: [[data]]",
        "net.yaml:8: an op entry has an item in 'inputs' that is",
    ),
    "inputs with nothing": (
        "inputs: [data]",
        "inputs: [~]",
        "net.yaml:8: an op entry has an item in 'inputs' that is",
    ),
    "outputs that are a word": (
        "outputs: [x]",
        "outputs: x",
        "net.yaml:8: an op entry has a 'outputs' that is not a li",
    ),
    "outputs that are nothing": (
        "outputs: [x]",
        "outputs: ~",
        "net.yaml:8: an op entry has a 'outputs' that is not a li",
    ),
    "outputs that are one blob twice": (
        "outputs: [data, label]",
        "outputs: [data, data]",
        "net.yaml:7: op 'data' writes blob 'data' twice",
    ),
    "an op that writes what it reads": (
        "inputs: [data], outputs: [x]",
        "inputs: [data], outputs: [data]",
        "net.yaml:9: op 'fc' reads blob 'x', which nothing declar",
    ),
    "too few inputs": (
        "inputs: [y, label]",
        "inputs: [y]",
        "net.yaml:10: op 'loss' (SoftmaxLoss) at host 127.0.0.1,",
    ),
    "an attribute twice": (
        "outputs: [x]}",
        "outputs: [x], axis: 1, axis: 1}",
        "net.yaml:8: an entry has the key 'axis' twice",
    ),
    "an attribute that is a mapping": (
        "outputs: [x]}",
        "outputs: [x], axis: {a: 1}}",
        "net.yaml:8: an op entry has a 'axis' that is not a value",
    ),
    "an attribute that is nothing": (
        "outputs: [x]}",
        "outputs: [x], axis: ~}",
        "net.yaml:8: op 'flat' (Flatten) at host 127.0.0.1, cpu:0",
    ),
    "an axis that is not there": (
        "outputs: [x]}",
        "outputs: [x], axis: 9}",
        "net.yaml:8: op 'flat' (Flatten) at host 127.0.0.1, cpu:0",
    ),
    "an axis of 400 digits": (
        "outputs: [x]}",
        f"outputs: [x], axis: {BIG}}}",
        f"net.yaml:8: the number is too large\n{FITS}axis: 9999",
    ),
    "a kind of torch that is not there": (
        "op_type: Flatten",
        "op_type: aten.flattn",
        "net.yaml:8: op 'flat' at host 127.0.0.1, cpu:0 is of unk",
    ),
    "an overload that is not there": (
        "op_type: Flatten",
        "op_type: aten.relu.nothing",
        "net.yaml:8: op 'flat' at host 127.0.0.1, cpu:0 is of unk",
    ),
    "a kind of another package": (
        "op_type: Flatten",
        "op_type: os.system",
        "net.yaml:8: op 'flat' at host 127.0.0.1, cpu:0 is of unk",
    ),
    "a kind that is half a name": (
        "op_type: Flatten",
        "op_type: aten.",
        "net.yaml:8: op 'flat' at host 127.0.0.1, cpu:0 is of unk",
    ),
    "labels as floats": (
        "size: [8], dtype: int64",
        "size: [8]",
        "net.yaml:10: op 'loss' (SoftmaxLoss) at host 127.0.0.1,",
    ),
    "labels for another batch": (
        "size: [8], dtype: int64",
        "size: [7], dtype: int64",
        "net.yaml:10: op 'loss' (SoftmaxLoss) at host 127.0.0.1,",
    ),
    "weights transposed": (
        "size: [10, 784]",
        "size: [784, 10]",
        "net.yaml:9: op 'fc' (InnerProduct) at host 127.0.0.1, cp",
    ),
    "a bias of another length": (
        "size: [10]}",
        "size: [11]}",
        "net.yaml:9: op 'fc' (InnerProduct) at host 127.0.0.1, cp",
    ),
    "weights of whole numbers": (
        "size: [10, 784]",
        "size: [10, 784], dtype: int32",
        "net.yaml:9: op 'fc' (InnerProduct) at host 127.0.0.1, cp",
    ),
    "weights of truths": (
        "size: [10, 784]",
        "size: [10, 784], dtype: bool",
        "net.yaml:9: op 'fc' (InnerProduct) at host 127.0.0.1, cp",
    ),
    "inputs in another order": (
        "inputs: [x, w, b]",
        "inputs: [w, x, b]",
        "net.yaml:9: op 'fc' (InnerProduct) at host 127.0.0.1, cp",
    ),
    "an output without a blob": (
        "{type: output, blob: loss}",
        "{type: output}",
        "net.yaml:11: an output entry has no 'blob'",
    ),
    "an output that is a list": (
        "blob: loss}",
        "blob: [loss]}",
        "net.yaml:11: an output entry has a 'blob' that is not te",
    ),
    "an output that is an op": (
        "{type: output, blob: loss}",
        "{type: output, blob: fc}",
        "output 'fc' is no blob of the graph",
    ),
    "a control edge without an end": (
        "- {type: output",
        "- {type: control, before: fc}\n- {type: output",
        "net.yaml:11: a control entry has no 'after'",
    ),
    "a control edge to itself": (
        "- {type: output",
        "- {type: control, before: fc, after: fc}\n- {type: output",
        "net.yaml:9: the graph has a cycle: fc -> fc",
    ),
    "a control edge backwards": (
        "- {type: output",
        "- {type: control, before: loss, after: fc}\n- {type: output",
        "net.yaml:9: the graph has a cycle: fc -> 'y' -> loss ->",
    ),
    "a control edge of numbers": (
        "- {type: output",
        "- {type: control, before: 1, after: 2}\n- {type: output",
        "net.yaml:11: a control entry has a 'before' that is not",
    ),
}
"""A text of the net, what stands there instead, and the beginning of the message."""

TRAINED: dict[str, tuple[str, str, str]] = {
    "a net without a loss": (
        "op_type: SoftmaxLoss, name: loss, inputs: [y, label]",
        "op_type: Relu, name: loss, inputs: [y]",
        "net.yaml: the net has no loss",
    ),
    "a net without data": (
        "- {type: op, op_type: Data, name: data, inputs: [], outputs: [data, label]}\n",
        "",
        "net.yaml: the net has no Data op, so there is nothing to",
    ),
    "data of another dtype": (
        "size: [8, 1, 28, 28]}",
        "size: [8, 1, 28, 28], dtype: float64}",
        "net.yaml:9: op 'fc' (InnerProduct) at host 127.0.0.1, cp",
    ),
    "data with one output": (
        "outputs: [data, label]",
        "outputs: [data]",
        "net.yaml:7: op 'data' does not fit the data",
    ),
    "data with three outputs": (
        "outputs: [data, label]",
        "outputs: [data, label, more]",
        "net.yaml:7: op 'data' (Data) at host 127.0.0.1, cpu:0 wr",
    ),
    "data of another source": (
        "outputs: [data, label]}",
        "outputs: [data, label], source: validation}",
        "net.yaml:7: op 'data' reads source 'validation', which d",
    ),
    "fewer scores than classes": (
        "[10",
        "[9",
        "net.yaml:10: data 'fashion-mini' has 10 classes, and the",
    ),
    "no batch at all": ("[8", "[0", "batch is 0"),
}


def test_the_net_is_good(tmp_path: Path) -> None:
    file = tmp_path / "net.yaml"
    file.write_text(NET)
    assert call("check", file).code == 0
    assert call("train", "--net", file, "--iters", "1", "--out", tmp_path / "out").code == 0


@pytest.mark.parametrize("name", CHANGES)
def test_changes_of_a_good_graph(tmp_path: Path, name: str) -> None:
    old, new, text = CHANGES[name]
    file = tmp_path / "net.yaml"
    assert old in NET
    file.write_text(NET.replace(old, new))
    called = refused(tmp_path, ["check", file], [text], several=True)
    if called.err.count("error: ") == 1:
        out = tmp_path / "out"
        refused(tmp_path, ["train", "--net", file, "--out", out], [text])


@pytest.mark.parametrize("name", TRAINED)
def test_graphs_that_cannot_be_trained(tmp_path: Path, name: str) -> None:
    old, new, text = TRAINED[name]
    file = tmp_path / "net.yaml"
    assert old in NET
    file.write_text(NET.replace(old, new))
    refused(tmp_path, ["train", "--net", file, "--iters", "1", "--out", tmp_path / "out"], [text])
