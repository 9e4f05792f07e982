"""What users get wrong in options, through the real entry point."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.wrong_inputs.refused import refused

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
        ["solver adam takes no momentum", "options of adam: lr, weight_decay\n", "momentum 0.9"],
    ),
    "weight decay negative": ("--weight-decay -1", ["weight_decay is -1.0", "0 or more"]),
    "unknown precision": (
        "--precision fp8",
        [
            "precision is text 'fp8'",
            "expected: one of fp32, tf32, bf16, fp16",
            "change --precision",
        ],
    ),
    "clip 0": ("--clip 0", ["clip is 0.0", "above 0"]),
    "scale 0": ("--scale 0", ["scale is 0.0", "a number other than 0", "change --scale"]),
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
    "crop larger than the images": (
        "--crop 29",
        ["a crop of 29", "images of 28 x 28 with pad 0", "at most 28", "lower crop (--crop)"],
    ),
    "means for other channels": (
        "--mean 1,2,3",
        ["3 means are given for images of [1, 28, 28]", "one number\n", "1, 2, 3", "(--mean)"],
    ),
    "a net for larger images": (
        "--net vgg16",
        ["images of [1, 28, 28] are too small for net 'vgg16'", "'block5/pool'", "such as lenet"],
    ),
    "a net for tokens": (
        "--net gpt2",
        ["net 'gpt2' does not fit", "expected: tokens", "--data synthetic-tokens:length=64"],
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
    "a GPU that is not there": (
        "--devices cuda:99",
        ["device cuda:99 is not there", "GPUs that torch sees", "found: cuda:99"],
    ),
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
    "resume of nothing": ("--resume", ["there is no run in this folder", "found: nothing"]),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_wrong_options(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options, texts = OPTIONS[name]
    monkeypatch.chdir(tmp_path)
    refused(tmp_path, ["train", "--out", str(tmp_path / "out"), *options.split()], texts)


def test_resume_without_a_folder(tmp_path: Path) -> None:
    refused(tmp_path, ["train", "--resume"], ["which run", "found: no --out"])
