"""What users get wrong in options, through the real entry point."""

from __future__ import annotations

import shlex
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
    "unknown compression": (
        "--compress zip",
        ["compress is text 'zip'", "expected: one of none, fp16", "change --compress"],
    ),
    "compression on one host": (
        "--compress int8",
        ["nothing to compress: the step is on one host", "leave compression out (--compress)"],
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
        "--devices cpu:0-1 --threads 1024",
        ["device cpu:1 is not there", "a device has 1024", "found: cpu:0, cpu:1"],
    ),
    "a GPU that is not there": (
        "--devices cuda:99",
        ["device cuda:99 is not there", "GPUs that torch sees", "found: cuda:99"],
    ),
    "no device at all": ("--devices tpu", ["devices are 'tpu'", "expected: cpu:K"]),
    "a range backwards": ("--devices cpu:3-1", ["devices are 'cpu:3-1'", "spans such as"]),
    "more devices than a machine has": ("--devices cpu:0-99999", ["K is below 1000", "99999"]),
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
        [
            "no setting 'pipelin'",
            "one of workers, asynchronous, data, shares, pipeline",
            "did you mean 'pipeline'?",
        ],
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


BIG = "9" * 400
LONG = "n" * 300

MORE: dict[str, tuple[str, str]] = {
    "prefetch without end": ("--prefetch 1000000000", "prefetch is 1000000000"),
    "threads without end": ("--threads 1000000", "threads is 1000000"),
    "iters of 400 digits": (
        f"--iters {BIG}",
        "iters is 99999999999999999999999999999999999999999999999",
    ),
    "epochs of 400 digits": (
        f"--epochs {BIG}",
        "epochs is 9999999999999999999999999999999999999999999999",
    ),
    "seed of 400 digits": (
        f"--seed {BIG}",
        "seed is 999999999999999999999999999999999999999999999999",
    ),
    "batch of 400 digits": (
        f"--batch {BIG}",
        "batch is 99999999999999999999999999999999999999999999999",
    ),
    "crop of 400 digits": (
        f"--crop {BIG}",
        "crop is 999999999999999999999999999999999999999999999999",
    ),
    "lr of 400 digits": (f"--lr {BIG}", "lr is inf"),
    "mean of 400 digits": (f"--mean {BIG}", "mean is inf"),
    "keep of 400 digits": (
        f"--keep {BIG}",
        "keep is 999999999999999999999999999999999999999999999999",
    ),
    "seed of 2^63": ("--seed 9223372036854775808", "seed is 9223372036854775808"),
    "batch of 2^62": (
        "--batch 4611686018427387904",
        "a batch of 4611686018427387904 is larger than the training set",
    ),
    "a batch beyond all memory": (
        "--batch 1000000000000",
        "a batch of 1000000000000 is larger than the training set",
    ),
    "crop of 2^62": (
        "--crop 4611686018427387904",
        "a crop of 4611686018427387904 cannot be cut from images of 28 x 28",
    ),
    "pad of 2^62": (
        "--crop 28 --pad 4611686018427387904",
        "op 'data/crop' (Crop) at host 127.0.0.1, cpu:0 cannot ta",
    ),
    "lr infinite": ("--lr inf", "lr is inf"),
    "lr 0": ("--lr 0", "lr is 0.0"),
    "lr of words": ("--lr fast", "Invalid value for '--lr': Input should be a valid number"),
    "momentum negative": ("--momentum -0.5", "momentum is -0.5"),
    "momentum infinite": ("--momentum inf", "momentum is inf"),
    "weight decay not a number": ("--weight-decay nan", "weight_decay is nan"),
    "clip negative": ("--clip -1", "clip is -1.0"),
    "clip not a number": ("--clip nan", "clip is nan"),
    "scale infinite": ("--scale inf", "scale is inf"),
    "scale not a number": ("--scale nan", "scale is nan"),
    "mean infinite": ("--mean inf", "mean is inf"),
    "mean of nothing": ("--mean ''", "mean is ''"),
    "mean with a hole": ("--mean 1,,2", "mean is '1,,2'"),
    "iters negative": ("--iters -1", "iters is -1"),
    "iters of words": ("--iters many", "Invalid value for '--iters': Input should be a valid int"),
    "iters with a fraction": (
        "--iters 1.5",
        "Invalid value for '--iters': Input should be a valid int",
    ),
    "prefetch negative": ("--prefetch -1", "prefetch is -1"),
    "log-every 0": ("--log-every 0", "log_every is 0"),
    "test-every 0": ("--test-every 0", "test_every is 0"),
    "trace-iters 0": ("--trace-iters 0", "trace_iters is 0"),
    "crop 0": ("--crop 0", "crop is 0"),
    "pad negative": ("--crop 8 --pad -1", "pad is -1"),
    "accumulate negative": ("--accumulate -2", "accumulate is -2"),
    "an empty data": ("--data ''", "data is ''"),
    "an empty net": ("--net ''", "net is ''"),
    "an empty solver": ("--solver ''", "solver is ''"),
    "an empty devices": ("--devices ''", "devices is ''"),
    "an empty parallel": ("--parallel ''", "parallel is ''"),
    "an empty policy": ("--lr-policy ''", "lr_policy is ''"),
    "an empty precision": ("--precision ''", "precision is text ''"),
    "an empty layout": ("--layout ''", "layout is text ''"),
    "empty weights": ("--weights ''", "weights is ''"),
    "an empty test net": ("--test-net ''", "test_net is ''"),
    "an empty mean file": ("--mean-file ''", "mean_file is ''"),
    "an unknown layout": ("--layout nhwc", "layout is text 'nhwc'"),
    "an out of 300 characters": (f"--out {LONG}", "the folder of the run cannot be used"),
    "an out of a deep 300 characters": (f"--out a/{LONG}/b", "a/"),
    "an out of nobody": (
        "--out ~nosuchuser/x",
        "~nosuchuser/x: there is no user for '~nosuchuser'",
    ),
    "a net of nobody": (
        "--net ~nosuchuser/x.yaml",
        "~nosuchuser/x.yaml: there is no user for '~nosuchuser'",
    ),
    "data of nobody": (
        "--data ~nosuchuser/x",
        "~nosuchuser/x: there is no user for '~nosuchuser'",
    ),
    "stored data of nobody": (
        "--data lmdb:~nosuchuser/x",
        "~nosuchuser/x: there is no user for '~nosuchuser'",
    ),
    "weights of nobody": (
        "--weights ~nosuchuser/x.safetensors",
        "~nosuchuser/x.safetensors: there is no user for '~nosuchuser'",
    ),
    "a mean file of nobody": (
        "--mean-file ~nosuchuser/x.binaryproto",
        "~nosuchuser/x.binaryproto: there is no user for '~nosuchuser'",
    ),
    "a test net of nobody": (
        "--test-net ~nosuchuser/x.yaml",
        "~nosuchuser/x.yaml: there is no user for '~nosuchuser'",
    ),
    "a solver of nobody": (
        "--solver ~nosuchuser/x.prototxt",
        "~nosuchuser/x.prototxt: cannot read the file",
    ),
    "a schedule of nobody": (
        "--parallel pipeline=2,schedule=~nosuchuser/x.txt",
        "~nosuchuser/x.txt: there is no user for '~nosuchuser'",
    ),
    "a net of 300 characters": (f"--net {LONG}", "there is no net '"),
    "a net file of 300 characters": (f"--net {LONG}.yaml", "cannot read"),
    "a net definition of 300 characters": (f"--net {LONG}.prototxt", "cannot read"),
    "data of 300 characters": (f"--data {LONG}", "there is no data set '"),
    "a data archive of 300 characters": (f"--data {LONG}.npz", "there is no such file or folder"),
    "stored data of 300 characters": (f"--data hdf5:{LONG}", "the file cannot be read"),
    "an image list of 300 characters": (
        f"--data image-list:{LONG}",
        "the list of pictures cannot be read",
    ),
    "weights of 300 characters": (f"--weights {LONG}.safetensors", "cannot read"),
    "a mean file of 300 characters": (f"--mean-file {LONG}", "cannot read"),
    "a test net of 300 characters": (f"--test-net {LONG}.yaml", "cannot read"),
    "a solver of 300 characters": (f"--solver {LONG}.prototxt", "cannot read"),
    "an out that is a device": ("--out /dev/null", "/dev/null: this is not a folder"),
    "an out inside a device": (
        "--out /dev/null/x",
        "/dev/null/x: cannot write to the folder of the run",
    ),
    "a net that is a device": ("--net /dev/null", "there is no net '/dev/null'"),
    "data that is a device": ("--data /dev/null", "/dev/null: there is no such file or folder"),
    "weights that are not there": (
        "--weights none.safetensors",
        "none.safetensors: cannot read the file",
    ),
    "weights that are a folder": ("--weights .", ".: these weights need the layers of a Caffe net"),
    "a mean file that is not there": (
        "--mean-file none.binaryproto",
        "none.binaryproto: cannot read the file",
    ),
    "a mean file that is a folder": ("--mean-file .", ".: cannot read the file"),
    "a mean and a mean file": (
        "--mean 3 --mean-file a.binaryproto",
        "both mean and mean_file are given",
    ),
    "a test net that is not there": ("--test-net none.yaml", "none.yaml: cannot read the graph"),
    "a test net by name": ("--test-net lenet", "lenet: cannot read the graph"),
    "a solver file that is not there": (
        "--solver none.prototxt",
        "none.prototxt: cannot read the file",
    ),
    "tf32 without a GPU": ("--precision tf32", "precision is tf32, and the job has no GPU"),
    "devices with a hole": ("--devices cpu:0,,cpu:1", "found: ''"),
    "devices with spaces": ("--devices 'cpu: 0'", "devices are 'cpu: 0'"),
    "a device of 400 digits": (
        f"--devices cpu:{BIG}",
        "'cpu:999999999999999999999999999999999999999999999999999",
    ),
    "a device in capitals": ("--devices CPU:0", "devices are 'CPU:0'"),
    "a device on another host": ("--devices 10.0.0.1/cpu:0", "devices are '10.0.0.1/cpu:0'"),
    "a scheme of 400 digits": (
        f"--parallel data={BIG}",
        "data is 999999999999999999999999999999999999999999999999",
    ),
    "a scheme with a fraction": ("--parallel data=1.5", "data is '1.5'"),
    "a scheme with an empty value": ("--parallel data=", "data is ''"),
    "a negative scheme": ("--parallel data=-2", "data is '-2'"),
    "micro-batches without end": (
        "--devices cpu:0-1 --share-cores --parallel pipeline=2,micro=1000000000",
        "micro is 1000000000",
    ),
    "a bucket of words": ("--parallel bucket=large", "bucket is 'large'"),
    "recompute of 1": ("--parallel recompute=1", "recompute is 1"),
    "recompute of nothing": ("--parallel recompute=", "there is no block ''"),
    "hybrid of words": ("--parallel model=2,hybrid=perhaps", "hybrid is 'perhaps'"),
    "a schedule in a folder": (
        "--parallel pipeline=2,schedule=./.x",
        "there is no schedule './.x'",
    ),
    "a policy with a setting twice": ("--lr-policy step:step=3,step=4", "step is given twice"),
    "a policy with an infinite gamma": ("--lr-policy exp:gamma=inf", "gamma is inf"),
    "a policy with a gamma of words": ("--lr-policy exp:gamma=often", "gamma is 'often'"),
    "a policy with steps backwards": (
        "--lr-policy 'multistep:steps=200|100'",
        "steps are (200, 100)",
    ),
    "a policy with a negative warm-up": ("--lr-policy fixed:warmup=-1", "warmup is -1"),
    "a policy of 400 digits": (
        f"--lr-policy step:step={BIG}",
        "op 'lr' (StepRate) at host 127.0.0.1, cpu:0 cannot take",
    ),
    "a policy with a colon alone": ("--lr-policy step:", "policy 'step' needs step"),
    "an unknown option": ("--batchsize 8", "No such option: --batchsize"),
    "an option without its value": ("--batch", "Option '--batch' requires an argument"),
    "a switch with a value": ("--resume=yes", "Option '--resume' does not take a value"),
    "two jobs": ("a.yaml b.yaml", "Got unexpected extra argument(s) (b.yaml)"),
    "resume of a job's folder": ("--resume --net lenet", "out: there is no run in this folder"),
    "dry run of nothing": ("--dry-run --net none", "there is no net 'none'"),
}

COMMANDS: dict[str, tuple[str, str]] = {
    "no such command": ("trian", "No such command 'trian'. Did you mean 'train', 'trace'?"),
    "show of two nets": ("show --net lenet --net nope", "there is no net 'nope'"),
    "show of a file and a net": ("show net.yaml --net lenet", "both a file and --net are given"),
    "show in an unknown form": (
        "show --net lenet --format png",
        "Invalid value for '--format': Value error, 'png' is not",
    ),
    "show of no batch": (
        "show --net lenet --batch 0",
        "Invalid value for '--batch': Input should be greater tha",
    ),
    "show of a batch of 400 digits": (
        f"show --net lenet --batch {BIG}",
        "blob 'data' is larger than a tensor can be",
    ),
    "show of a batch of 2^62": (
        "show --net lenet --batch 4611686018427387904",
        "blob 'data' is larger than a tensor can be",
    ),
    "show of an image of words": ("show --net lenet --image a,b,c", "--image is 'a,b,c'"),
    "show of an image of 400 digits": (
        f"show --net lenet --image 1,{BIG},28",
        "blob 'data' is larger than a tensor can be",
    ),
    "show of an image of two sizes": ("show --net lenet --image 28,28", "--image is '28,28'"),
    "show of an image too small": (
        "show --net lenet --image 1,4,4",
        "op 'conv1' (Conv) at host 127.0.0.1, cpu:0 cannot take i",
    ),
    "show at depth 0": (
        "show --net lenet --depth 0",
        "Invalid value for '--depth': Input should be greater tha",
    ),
    "show of blocks as YAML": (
        "show --net lenet --depth 1 --format yaml",
        "blocks cannot be written as YAML",
    ),
    "show into a folder": ("show --net lenet -o .", ".: cannot write the file"),
    "show into no folder": (
        "show --net lenet -o none/net.txt",
        "none/net.txt: cannot write the file",
    ),
    "show into 300 characters": (f"show --net lenet -o {LONG}", "cannot"),
    "show of a file that is not there": ("show none.yaml", "none.yaml: cannot read the graph"),
    "check of nothing": ("check", "Missing argument 'FILE...'"),
    "check of a file that is not there": ("check none.yaml", "none.yaml: cannot read the graph"),
    "check of a device": ("check /dev/null", "found: a device, not a file\n"),
    "check of an image of words": ("check net.prototxt --image large", "--image is 'large'"),
    "test of nothing": ("test", "Missing argument 'run'"),
    "test of a folder that is not there": ("test none", "none: there is no run in this folder"),
    "test of 300 characters": (f"test {LONG}", "cannot"),
    "test of nobody": (
        "test ~nosuchuser/x",
        "~nosuchuser/x: there is no user for '~nosuchuser'",
    ),
    "test of a checkpoint of words": (
        "test none --checkpoint last",
        "Invalid value for '--checkpoint': Input should be a vali",
    ),
    "trace of nothing": ("trace", "Missing argument 'RUN|FILE'"),
    "trace of a file that is not there": ("trace none.json", "none.json: cannot read the trace"),
    "trace of 300 characters": (f"trace {LONG}", "cannot"),
    "trace of a device": ("trace /dev/null", "found: a device, not a file\n"),
    "trace with a top of words": (
        "trace none --top all",
        "Invalid value for '--top': Input should be a valid integ",
    ),
    "trace with a negative top": (
        "trace none --top -1",
        "Invalid value for '--top': Input should be greater than",
    ),
    "import of an unknown framework": (
        "import onnx net.onnx -o net.yaml",
        "No such command 'onnx'",
    ),
    "import without an output": ("import caffe net.prototxt", "Missing option '--output' / '-o'"),
    "import of a file that is not there": (
        "import caffe none.prototxt -o net.yaml",
        "none.prototxt: cannot read the file",
    ),
    "import of a folder": ("import caffe . -o net.yaml", ".: cannot read the file"),
    "import with no batch": (
        "import caffe none.prototxt --batch 0 -o net.yaml",
        "Invalid value for '--batch': Input should be greater tha",
    ),
}


@pytest.mark.parametrize("name", MORE)
def test_more_wrong_options(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options, text = MORE[name]
    monkeypatch.chdir(tmp_path)
    refused(tmp_path, ["train", "--out", tmp_path / "out", *shlex.split(options)], [text])


@pytest.mark.parametrize("name", COMMANDS)
def test_wrong_commands(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words, text = COMMANDS[name]
    monkeypatch.chdir(tmp_path)
    refused(tmp_path, shlex.split(words), [text])
