"""What users get wrong, through the real entry point: each is told in full and leaves no trace.

A case says which texts the message has to hold: what is wrong, where, what was expected and found.
"""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import purine as pu
from purine.graph import save_yaml
from tests.command import Called, call, tree


def refused(folder: Path, arguments: list[str], texts: list[str]) -> Called:
    """Call, and check what holds for every mistake."""
    before = tree(folder)
    called = call(*arguments)
    assert called.code == 2
    assert called.err.startswith("error: ")
    assert "Traceback" not in called.err
    for text in texts:
        assert text in called.err
    assert tree(folder) == before
    return called


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
        ["net.yaml:1", "a graph is a list of entries", "found: a mapping"],
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


def idx(array: np.ndarray) -> bytes:  # type: ignore[type-arg]
    sizes = np.array(array.shape, ">u4").tobytes()
    return bytes([0, 0, 8, array.ndim]) + sizes + array.astype(np.uint8).tobytes()


IMAGES = np.zeros((40, 28, 28), np.uint8)
LABELS = np.arange(40, dtype=np.uint8) % 4


def idx_folder(folder: Path, **changed: bytes) -> str:
    """A good data set of IDX files but for the files given."""
    files = {
        "train_images": idx(IMAGES),
        "train_labels": idx(LABELS),
        "t10k_images": idx(IMAGES),
        "t10k_labels": idx(LABELS),
    } | changed
    folder.mkdir()
    for name, data in files.items():
        part, content = name.split("_")
        (folder / f"{part}-{content}-idx{3 if content == 'images' else 1}-ubyte").write_bytes(data)
    return str(folder)


def corrupt_gzip(tmp: Path) -> str:
    folder = Path(idx_folder(tmp / "data"))
    plain = folder / "train-images-idx3-ubyte"
    packed = bytearray(gzip.compress(plain.read_bytes()))
    packed[len(packed) // 2] ^= 0xFF
    plain.unlink()
    (folder / "train-images-idx3-ubyte.gz").write_bytes(packed)
    return str(folder)


def npz(tmp: Path, **arrays: np.ndarray) -> str:  # type: ignore[type-arg]
    np.savez(tmp / "data.npz", **arrays)  # type: ignore[arg-type]
    return str(tmp / "data.npz")


DATA: dict[str, tuple[Callable[[Path], str], list[str]]] = {
    "missing folder": (
        lambda tmp: str(tmp / "none"),
        ["none: there is no such file or folder", "expected: fashion-mini", "found: nothing"],
    ),
    "empty folder": (
        lambda tmp: str(tmp),
        ["this folder is no data set", "train-images-idx3-ubyte", "found: an empty folder"],
    ),
    "unknown name": (
        lambda tmp: "fashion-mimi",
        ["there is no data set 'fashion-mimi'", "expected: fashion-mini", "'fashion-mini'?"],
    ),
    "unknown option": (
        lambda tmp: "synthetic:imago=1x28x28",
        ["there is no option 'imago'", "expected: image", "did you mean 'image'?"],
    ),
    "wrong option": (
        lambda tmp: "synthetic:image=28x28",
        ["option 'image' cannot be read", "expected: CxHxW", "found: '28x28'"],
    ),
    "truncated IDX": (
        lambda tmp: idx_folder(tmp / "data", train_images=idx(IMAGES)[:-5]),
        ["train-images-idx3-ubyte", "expected: 31376 bytes", "found: 31371 bytes"],
    ),
    "wrong magic": (
        lambda tmp: idx_folder(tmp / "data", train_labels=b"PNG!" + idx(LABELS)[4:]),
        ["train-labels-idx1-ubyte", "expected: ", "found: 50 4e 47 21"],
    ),
    "labels out of range": (
        lambda tmp: idx_folder(tmp / "data", t10k_labels=idx(LABELS + 1)),
        ["t10k-labels-idx1-ubyte", "expected: ", "found: ", "4"],
    ),
    "fewer labels than images": (
        lambda tmp: idx_folder(tmp / "data", train_labels=idx(LABELS[:39])),
        ["40", "39", "expected: "],
    ),
    "corrupt gzip": (corrupt_gzip, ["train-images-idx3-ubyte.gz", "gzip", "expected: ", "found: "]),
    "npz without labels": (
        lambda tmp: npz(tmp, x_train=IMAGES),
        ["data.npz", "y_train", "expected: ", "found: x_train"],
    ),
    "npz that is none": (
        lambda tmp: str((tmp / "data.npz").write_bytes(b"no archive") and tmp / "data.npz"),
        ["data.npz", "expected: ", "found: "],
    ),
    "images too small for the net": (
        lambda tmp: "synthetic:image=1x8x8,classes=4,count=100",
        ["op 'conv2' (Conv)", "[8, 20, 2, 2]", "Kernel size"],
    ),
    "tokens for a net of images": (
        lambda tmp: "synthetic-tokens:length=8,vocabulary=10,count=100",
        ["net 'lenet' does not fit", "expected: images [C, H, W]", "found: "],
    ),
    "pixels for a net of images": (
        lambda tmp: "synthetic-masks:image=1x28x28,classes=10,count=100",
        ["op 'data' does not fit", "expected: image: float32 1x28x28, label: int64 28x28"],
    ),
}


@pytest.mark.parametrize("name", DATA)
def test_wrong_data(tmp_path: Path, name: str) -> None:
    make, texts = DATA[name]
    spec = make(tmp_path)
    out = str(tmp_path / "out")
    refused(tmp_path, ["train", "--data", spec, "--batch", "8", "--out", out], texts)


OPTIONS: dict[str, tuple[str, list[str]]] = {
    "batch 0": ("--batch 0", ["batch is 0", "expected: 1 or more", "found: 0"]),
    "batch too large": (
        "--batch 6001",
        ["a batch of 6001 is larger", "expected: at most 6000", "found: 6001"],
    ),
    "batch too large in all": (
        "--batch 3001 --accumulate 2",
        ["a batch of 6002", "batch 3001 times accumulate 2", "at most 6000"],
    ),
    "accumulate 0": ("--accumulate 0", ["accumulate is 0", "expected: 1 or more"]),
    "lr negative": ("--lr -0.1", ["lr is -0.1", "expected: a number above 0", "found: -0.1"]),
    "lr not a number": ("--lr nan", ["lr is nan", "expected: a finite number"]),
    "momentum 1": ("--momentum 1", ["momentum is 1.0", "below 1"]),
    "momentum for adam": (
        "--solver adam --momentum 0.9",
        ["solver adam takes no momentum", "expected: options of adam: lr", "found: momentum 0.9"],
    ),
    "weight decay negative": ("--weight-decay -1", ["weight_decay is -1.0", "0 or more"]),
    "clip 0": ("--clip 0", ["clip is 0.0", "above 0"]),
    "unknown solver": (
        "--solver adamm",
        ["there is no solver 'adamm'", "expected: one of adadelta", "did you mean 'adam'?"],
    ),
    "unknown net": (
        "--net lenett",
        ["there is no net 'lenett'", "expected: alexnet, ", "did you mean 'lenet'?"],
    ),
    "net file that is not there": (
        "--net none.yaml",
        ["none.yaml: cannot read the graph", "No such file", "expected: the path"],
    ),
    "unknown policy": (
        "--lr-policy cosin",
        ["no learning-rate policy 'cosin'", "expected: one of fixed", "did you mean 'cosine'?"],
    ),
    "unknown setting of a policy": (
        "--lr-policy step:stepp=3",
        ["policy 'step' has no setting 'stepp'", "expected: settings of step", "'step'?"],
    ),
    "a policy without what it needs": (
        "--lr-policy step",
        ["policy 'step' needs step", "expected: step:step=", "found: 'step'"],
    ),
    "a setting that is no number": (
        "--lr-policy step:step=often",
        ["step is 'often'", "expected: a whole number", "found: 'often'"],
    ),
    "epochs negative": ("--epochs -1", ["epochs is -1", "expected: 0 or more", "found: -1"]),
    "epochs and iters": (
        "--epochs 1 --iters 5",
        ["both epochs and iters are given", "found: epochs 1, iters 5"],
    ),
    "device that is not there": (
        "--devices cpu:7",
        ["device cpu:7 cannot be used", "expected: cpu:0", "found: cpu:7"],
    ),
    "one of several devices that is not there": (
        "--devices cpu:0,cpu:999 --threads 1",
        ["device cpu:999 is not there", "expected: cpu:0 to cpu:", "--share-cores"],
    ),
    "more cores than there are": (
        "--devices cpu:0-1 --threads 4096",
        ["device cpu:1 is not there", "a device has 4096", "found: cpu:0, cpu:1"],
    ),
    "a GPU": ("--devices cuda:7", ["device cuda:7", "GPUs are not in this version"]),
    "no device at all": ("--devices tpu", ["'tpu' is no device", "expected: cpu:K"]),
    "a range backwards": ("--devices cpu:3-1", ["'cpu:3-1' is no device", "cpu:K-L"]),
    "more devices than a machine has": ("--devices cpu:0-99999", ["is no device", "99999"]),
    "a device twice": ("--devices cpu:0-1,cpu:1", ["device cpu:1 is named twice", "once"]),
    "a scheme for more devices": (
        "--devices cpu:0-3 --parallel data=2,pipeline=4",
        ["for 8 devices, and 4 are", "data 2 * pipeline 4 * model 1 = 8", "found: cpu:0, cpu:1"],
    ),
    "a scheme for one device": (
        "--parallel data=2",
        ["the scheme is for 2 devices, and 1 are named", "found: cpu:0"],
    ),
    "a batch that replicas do not divide": (
        "--devices cpu:0-2 --batch 64",
        ["a batch of 64", "data 3 does not divide 64", "a multiple of 3", "a batch of 66"],
    ),
    "a batch that micro-batches do not divide": (
        "--devices cpu:0-3 --parallel data=2,pipeline=2,micro=3 --batch 64",
        ["by data 2 * micro 3: micro 3 does not divide 32", "a multiple of 6", "or another micro"],
    ),
    "more stages than ops": (
        "--net mlp --devices cpu:0-31 --parallel pipeline=32,micro=2",
        ["cannot be cut into 32 stages", "ops that compute", "found: 32", "fewer stages"],
    ),
    "no setting": ("--parallel data:2", ["'data:2' is no setting", "such as data=2"]),
    "unknown setting": (
        "--parallel pipelin=2",
        ["no setting 'pipelin'", "one of data, pipeline", "did you mean 'pipeline'?"],
    ),
    "a setting twice": ("--parallel data=2,data=3", ["data is given twice", "every setting once"]),
    "a setting of letters": (
        "--parallel data=two",
        ["data is 'two'", "expected: a whole number, 1 or more", "found: 'two'"],
    ),
    "no replicas": ("--parallel data=0", ["data is 0", "1 or more"]),
    "unknown schedule": (
        "--parallel pipeline=2,schedule=1f2b",
        ["there is no schedule '1f2b'", "gpipe, 1f1b", "did you mean '1f1b'?"],
    ),
    "unknown topology": (
        "--parallel topology=rings",
        ["there is no topology 'rings'", "did you mean 'ring'?"],
    ),
    "unknown batch norm": (
        "--parallel batch_norm=synchronized",
        ["there is no batch_norm", "did you mean 'synchronised'?"],
    ),
    "a schedule without a pipeline": (
        "--parallel data=2,schedule=1f1b",
        ["schedule is given, and there is no pipeline", "pipeline=2 or more"],
    ),
    "chunks of a schedule without them": (
        "--parallel pipeline=2,chunks=2",
        ["one stage on each device", "interleaved"],
    ),
    "hybrid over one device": ("--parallel hybrid=true", ["model=2 or more", "found: model=1"]),
    "a hybrid pipeline": (
        "--parallel model=2,hybrid=true,pipeline=2",
        ["a hybrid net cannot be a pipeline", "found: pipeline=2"],
    ),
    "a cut for other stages": (
        "--parallel pipeline=2,cut=conv2|fc1",
        ["cut does not fit", "expected: 1 names", "found: 2 names"],
    ),
    "a cut at no op": (
        "--devices cpu:0-1 --share-cores --parallel pipeline=2,cut=conv7",
        ["there is no op or block 'conv7'", "did you mean 'conv"],
    ),
    "a schedule that is no file": (
        "--parallel pipeline=2,schedule=grid.txt",
        ["grid.txt: cannot read the schedule", "No such file"],
    ),
    "threads 0": ("--threads 0", ["threads is 0", "expected: 1 or more"]),
    "seed negative": ("--seed -1", ["seed is -1", "expected: 0 or more"]),
    "keep 0": ("--keep 0", ["keep is 0", "expected: 1 or more"]),
    "save-every 0": ("--save-every 0", ["save_every is 0", "change --save-every"]),
    "pad without crop": ("--pad 2", ["pad is 2, and there is no crop", "expected: a crop"]),
    "crop too large": ("--crop 64", ["28", "64", "expected: ", "found: "]),
    "mean of letters": ("--mean 1,b", ["mean is '1,b'", "expected: a number", "found: '1,b'"]),
    "means for other channels": ("--mean 1,2,3", ["Normalize", "3 means", "expected: "]),
    "resume of nothing": ("--resume", ["there is no run in this folder", "found: nothing"]),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_wrong_options(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options, texts = OPTIONS[name]
    monkeypatch.chdir(tmp_path)
    refused(tmp_path, ["train", "--out", str(tmp_path / "out"), *options.split()], texts)


def test_resume_without_a_folder(tmp_path: Path) -> None:
    refused(tmp_path, ["train", "--resume"], ["which run", "found: no --out"])


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
    file.write_text(X + "- {type: op, op_type: Relu, name: r, inputs: [x], outputs: [y]}\n")
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


CHECKPOINTS: dict[str, tuple[Callable[[Path], None], list[str]]] = {
    "truncated": (truncate, ["000000002", "another size", "expected: ", "found: ", "bytes"]),
    "bytes flipped": (flip_bytes, ["000000002", "is damaged", "expected: sha256", "found: sha256"]),
    "manifest not JSON": (break_manifest, ["000000002", "manifest", "expected: ", "JSON"]),
    "manifest missing": (no_manifest, ["000000002", "the manifest is missing", "no such file"]),
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


def test_missing_checkpoints_and_runs(tmp_path: Path, trained: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    shutil.rmtree(run / "checkpoints")
    refused(tmp_path, ["test", str(run)], [str(run), "no checkpoint in this folder", "expected: "])
    none = str(tmp_path / "none")
    refused(tmp_path, ["test", none], [none, "there is no run in this folder", "found: nothing"])
    refused(tmp_path, ["trace", str(run)], ["trace.json", "cannot read the trace", "No such file"])


def test_out_that_exists(tmp_path: Path, trained: Path) -> None:
    options = ["train", "--net", "mlp", "--iters", "1", "--out"]
    refused(trained, [*options, str(trained)], ["already", "a new or an empty folder", "--resume"])
    file = tmp_path / "file"
    file.write_text("mine")
    refused(tmp_path, [*options, str(file)], ["this is not a folder", "found: a file"])
    inside = str(file / "out")
    refused(tmp_path, [*options, inside], ["cannot write", "Not a directory", "--out"])


def test_nothing_to_show(tmp_path: Path) -> None:
    refused(tmp_path, ["show"], ["there is nothing to show", "alexnet, "])
    refused(tmp_path, ["show", "--net", "resnet"], ["there is no net 'resnet'", "expected: one of"])
