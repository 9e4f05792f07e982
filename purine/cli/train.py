"""`purine train`: options, signals, and what is printed while a job runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from purine.cli.names import DATA, NETS, POLICIES, PRECISIONS, SOLVERS, complete
from purine.errors import ConfigError

__all__ = ["train"]


def _option(
    help: str,
    default: str | None = None,
    *,
    metavar: str | None = None,
    names: Sequence[str] = (),
) -> typer.models.OptionInfo:
    """An option whose default is told but not filled in, so that one can see what was given.

    The shell completes it to one of the `names`.
    """
    info = typer.Option(
        help=help,
        show_default=default or False,
        metavar=metavar,
        autocompletion=complete(names) if names else None,
    )
    assert isinstance(info, typer.models.OptionInfo)
    return info


def train(
    context: typer.Context,
    job: Annotated[
        Path | None,
        typer.Argument(
            metavar="JOB",
            show_default=False,
            help="A YAML file with the options below as keys (`lr_policy: cosine`), or a Caffe "
            "solver (.prototxt); options given on the command line count more. A run's "
            "config.yaml repeats that run.",
        ),
    ] = None,
    net: Annotated[
        str | None,
        _option(
            f"A net by name ({', '.join(NETS)}), a graph in a .yaml file, or a Caffe net "
            "(.prototxt).",
            "lenet",
            names=NETS,
        ),
    ] = None,
    test_net: Annotated[
        str | None,
        _option("Another net with the same parameters for tests, in a file.", "the net itself"),
    ] = None,
    data: Annotated[
        str | None,
        _option(
            "fashion-mini, synthetic:image=CxHxW,classes=N,count=N, synthetic-masks (the same, for "
            "pixels), synthetic-tokens:length=N,vocabulary=N,count=N, a folder of IDX or .npy "
            "files, a .npz file, or lmdb:TRAIN,TEST, hdf5:TRAIN,TEST, image-list:TRAIN,TEST.",
            "what a Caffe net names, else fashion-mini",
            names=DATA,
        ),
    ] = None,
    weights: Annotated[
        list[str] | None,
        _option(
            "Values to start from, of which later ones win: Caffe weights (.caffemodel) for a "
            "Caffe net, or a .safetensors file by names of states. May be given several times.",
            "the net's fillers",
            metavar="FILE",
        ),
    ] = None,
    batch: Annotated[
        int | None,
        _option("Samples in a batch, of all devices.", "64, or what the net's file says"),
    ] = None,
    epochs: Annotated[int | None, _option("Epochs to train.", "1")] = None,
    iters: Annotated[int | None, _option("Iterations to train, instead of epochs.")] = None,
    solver: Annotated[
        str | None,
        _option(
            f"{', '.join(SOLVERS[:-1])} or {SOLVERS[-1]}, or a Caffe solver (.prototxt), "
            "whose settings count where no option is given.",
            "sgd",
            names=SOLVERS,
        ),
    ] = None,
    lr: Annotated[float | None, _option("Learning rate.", "the solver's own; 0.01 for sgd")] = None,
    momentum: Annotated[float | None, _option("Momentum, for sgd and lars.", "0.9")] = None,
    weight_decay: Annotated[
        float | None, _option("Weight decay.", "0.0005 for sgd and lars, else the solver's own")
    ] = None,
    lr_policy: Annotated[
        str | None,
        _option(
            "How the rate changes: fixed, step:step=1000,gamma=0.1, multistep:steps=100|200, "
            "exp:gamma=0.999, inv:gamma=0.0001,power=0.75, poly:power=1, cosine, "
            "sigmoid:gamma=-0.01,step=500; each also with warmup=100.",
            "fixed",
            names=POLICIES,
        ),
    ] = None,
    clip: Annotated[
        float | None, _option("Scale gradients down to this norm where it is larger.")
    ] = None,
    accumulate: Annotated[
        int | None, _option("Batches whose gradients are averaged for one update.", "1")
    ] = None,
    precision: Annotated[
        str | None,
        _option(
            "fp32, or bf16 or fp16 for convolutions, products and what follows them; weights and "
            "losses stay in fp32, and fp16 scales the loss. On GPUs also tf32: fp32 with "
            "convolutions and products of fewer bits.",
            "fp32",
            names=PRECISIONS,
        ),
    ] = None,
    seed: Annotated[
        int | None, _option("Decides first weights, order of samples and dropout.", "0")
    ] = None,
    devices: Annotated[
        str | None,
        _option(
            "Where to train: cpu:0 is all cores of the machine; cpu:0-3 are four devices with a "
            "quarter of them each; cuda:0 is the first GPU; cuda:0-3 are four GPUs.",
            "cpu:0",
        ),
    ] = None,
    parallel: Annotated[
        str | None,
        _option(
            "How several devices train: data=N replicas, each a pipeline of pipeline=N devices, "
            "each of which is cut over model=N (hybrid=true: convolutions share out the batch). "
            "Also micro=N micro-batches of a replica's batch (twice the pipeline's devices), "
            "schedule=gpipe|1f1b|interleaved|zero-bubble or a file with a grid, chunks=N stages on "
            "each device (interleaved), cut=NAME|NAME where stages begin, recompute=N blocks or "
            "NAME|NAME, topology=sharded|server|tree|ring|native, "
            "batch_norm=replica|synchronised, bucket=BYTES.",
            "a replica on each device",
            metavar="KEY=VALUE,...",
        ),
    ] = None,
    threads: Annotated[
        int | None,
        _option("Threads that one kernel may use: the cores of a device.", "all, shared out"),
    ] = None,
    share_cores: Annotated[
        bool | None, _option("Let more devices than there are cores for share them.")
    ] = None,
    prefetch: Annotated[int | None, _option("Iterations that data is read ahead.", "2")] = None,
    out: Annotated[
        str | None, _option("Folder of the run.", "runs/NET-DATA-NUMBER", metavar="DIR")
    ] = None,
    save_every: Annotated[
        int | None, _option("Iterations between checkpoints; one more at the end.", "every epoch")
    ] = None,
    keep: Annotated[int | None, _option("Newest checkpoints to keep.", "2")] = None,
    test_every: Annotated[
        int | None, _option("Iterations between tests; one more at the end.", "every epoch")
    ] = None,
    log_every: Annotated[
        int | None, _option("Iterations between lines of metrics.jsonl.", "10")
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Go on with the run in --out from its newest checkpoint; "
            "--epochs or --iters may be raised to train longer.",
        ),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Only tell what the job needs: memory of each device, bytes moved, the schedule.",
        ),
    ] = False,
    trace: Annotated[
        bool | None, _option("Write trace.json, for Perfetto and `purine trace`.", "no-trace")
    ] = None,
    trace_iters: Annotated[int | None, _option("Iterations in the trace.", "50")] = None,
    mean: Annotated[
        str | None,
        _option("Subtracted from the samples as stored: a number, or one a channel as R,G,B.", "0"),
    ] = None,
    mean_file: Annotated[
        str | None,
        _option(
            "Subtracted instead: a mean image as Caffe writes it (.binaryproto).", metavar="FILE"
        ),
    ] = None,
    scale: Annotated[
        float | None, _option("Factor after the mean.", "1/255 for bytes, else 1")
    ] = None,
    crop: Annotated[
        int | None,
        _option("Size of the part cut from images: at random, in tests from the middle."),
    ] = None,
    pad: Annotated[int | None, _option("Zeros around images before they are cropped.", "0")] = None,
    mirror: Annotated[
        bool | None, _option("Mirror images at random, not in tests.", "no-mirror")
    ] = None,
    layout: Annotated[
        str | None,
        _option(
            "How images and filters lie in memory: channels-last, contiguous, or auto, which is "
            "channels-last where most of the work is convolutions.",
            "auto on GPUs, else what the net's file says",
        ),
    ] = None,
    compile: Annotated[
        bool | None,
        _option(
            "Compile the step as a whole. On CPUs that takes up to a minute the first time, is "
            "quicker for nets like mlp and not for others, and gives numbers of other rounding.",
            "compile on GPUs, no-compile on CPUs",
        ),
    ] = None,
) -> None:
    """Train a net and write a run folder: config, net, metrics, summary and checkpoints.

    Ctrl-C (or SIGTERM, or SIGHUP unless nohup ignores it) ends a run after the iterations in flight
    with a checkpoint to resume from; a second one ends it at once. So does output that cannot be
    written any more (a closed pipe, a full disk), with a message on stderr and exit code 2.

    \b
    purine train --net lenet --epochs 5 --out runs/a
    purine train --net nin --data cifar.npz --crop 28 --mirror --solver adam --lr 0.001
    purine train --resume --out runs/a --epochs 10
    purine train --devices cpu:0-7 --parallel data=2,pipeline=4 --batch 256 --dry-run
    purine train --net resnet50 --precision bf16
    purine train runs/a/config.yaml --seed 1 --out runs/b
    purine train lenet_solver.prototxt --data fashion-mini --iters 1500
    purine train solver.prototxt --weights trained.caffemodel --lr 0.001
    """
    given = {
        key: value
        for key, value in context.params.items()
        if value is not None and key not in ("job", "resume", "dry_run", "weights")
    }
    if weights:
        given["weights"] = ",".join(weights)
    if mean is not None:
        given["mean"] = _numbers(mean)

    from purine.cli.progress import run_job
    from purine.job import read_options
    from purine.job.caffe import caffe_options, is_prototxt

    layers: list[dict[str, Any]] = []
    if job is not None and is_prototxt(job):
        layers = [caffe_options(job, net="net" not in given)]
    elif job is not None:
        layers = [read_options(job)]
    code = run_job([*layers, given], resumed=resume, dry=dry_run)
    if code:
        raise typer.Exit(code)


def _numbers(text: str) -> float | tuple[float, ...]:
    try:
        values = tuple(float(item) for item in text.split(","))
    except ValueError:
        raise ConfigError(
            f"mean is {text!r}",
            expected="a number, or one for each channel with commas between them",
            found=repr(text),
            remedy="write for example --mean 125.3,123.0,113.9",
        ) from None
    return values[0] if len(values) == 1 else values
