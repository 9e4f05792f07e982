"""The options of a training job: one table, from which everything else about them is derived.

A field of `JobOptions` declares an option: its name, type and default, and an `Option` with all
other facts. The command line, job files, checks, resumed runs and the identity of a run read this
table. Nothing here imports torch or numpy, so the help appears at once.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
import typing
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from enum import Enum, auto
from typing import Literal, TypeVar

from purine.errors import ConfigError
from purine.job.names import DATA, NETS, POLICIES, SOLVERS

__all__ = ["ALL", "AUTO", "BATCH", "DATA_SET", "OPTIONS", "JobOptions", "Option", "Resume"]

BATCH = 64
"""Samples in a batch, for a net of the zoo."""
ALL, AUTO = "all", "auto"
"""The devices that the machine has, and the scheme that a plan recommends."""
DATA_SET = "fashion-mini"
"""The data of a net that names none."""


class Resume(Enum):
    """How a resumed run treats a given option."""

    SAME = auto()  # it must be what the run was started with
    CHANGE = auto()  # it may differ; the run may not end sooner or change its learning rate
    PLACE = auto()  # it moves the run to other devices, or shares its cores
    IGNORE = auto()  # it only concerns the start of a run


_, CHANGE, PLACE, IGNORE = Resume
T = TypeVar("T")


@dataclass(frozen=True)
class Option:
    """Facts about an option. `name`, `annotation` and `default` come from its field.

    `annotation` is the type of a given value; `optional` options may be None as well, which leaves
    them to the net, the solver or the machine. `fallback` is the value where nothing else decides.
    The plan of a job always `settles` some options, so every recorded job has them. `instead_of`
    names the option that this one replaces: a job has at most one of the two.
    """

    help: str
    _: KW_ONLY
    name: str = ""
    annotation: object = None
    default: object = None
    optional: bool = False
    fallback: object = None
    shown: str | None = None  # in the help; by default the default or the fallback
    metavar: str | None = None
    names: tuple[str, ...] = ()  # that the shell completes; those of a Literal are known
    least: int | None = None
    most: int | None = None
    above: int | None = None
    nonzero: bool = False
    may_be_empty: bool = False
    repeated: bool = False  # on the command line; the texts are joined with commas
    parse: Callable[[str], object] | None = None  # from the text on the command line
    instead_of: str | None = None
    settled: bool = False
    recorded: bool = True  # in config.yaml
    resume: Resume = Resume.SAME
    identifies: bool = False  # part of the identity of a run

    @property
    def flag(self) -> str:
        """The option as it is written on the command line."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def argument_type(self) -> type:
        """The type of the value on the command line."""
        if self.repeated:
            return list[str]
        return next((kind for kind in (bool, int, float) if kind is self.annotation), str)

    @property
    def shown_default(self) -> str | None:
        """The default as the help shows it."""
        value = self.fallback if self.default is None else self.default
        if self.shown is not None or value is None:
            return self.shown
        if isinstance(value, bool):
            return f"{'' if value else 'no-'}{self.name.replace('_', '-')}"
        return f"{value:g}" if isinstance(value, float) else str(value)

    def field(self, default: T) -> T:
        """A field of a dataclass that declares this option."""
        return dataclasses.field(default=default, metadata={"option": self})

    def from_command_line(self, value: object) -> object:
        """The value of the option for the arguments of the command line."""
        if isinstance(value, list | tuple):
            return ",".join(value)
        return self.parse(value) if self.parse is not None and isinstance(value, str) else value


def _numbers(text: str) -> float | tuple[float, ...]:
    try:
        values = tuple(float(item) for item in text.split(","))
    except ValueError:
        expected, found = "a number, or one for each channel with commas between them", repr(text)
        remedy = "write for example --mean 125.3,123.0,113.9"
        raise ConfigError(f"mean is {text!r}", expected, found, remedy) from None
    return values[0] if len(values) == 1 else values


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """The table: a field for each option. `purine.job.Job` adds the checks of values.

    `mirror` is last because every recorded job has it: a config.yaml that was cut short lacks it.
    """

    net: str = Option(
        f"A net by name ({', '.join(NETS)}), a graph in a .yaml file, or a Caffe net (.prototxt).",
        names=NETS,
    ).field("lenet")
    test_net: str | None = Option(
        "Another net with the same parameters for tests, in a file.", shown="the net itself"
    ).field(None)
    data: str | None = Option(
        "fashion-mini, synthetic:image=CxHxW,classes=N,count=N, synthetic-masks (the "
        "same, for pixels), synthetic-tokens:length=N,vocabulary=N,count=N, a folder of IDX or "
        ".npy files, a .npz file, or lmdb:TRAIN,TEST, hdf5:TRAIN,TEST, image-list:TRAIN,TEST.",
        shown=f"what a Caffe net names, else {DATA_SET}",
        names=DATA,
        settled=True,
    ).field(None)
    weights: str | None = Option(
        "First values of states: Caffe weights (.caffemodel) for a Caffe net, or a .safetensors "
        "file with the names of states. May be given several times; later files win.",
        shown="the net's fillers",
        metavar="FILE",
        repeated=True,
        resume=IGNORE,
    ).field(None)
    batch: int | None = Option(
        "Samples in a batch, over all devices.",
        shown=f"{BATCH}, or what the net's file says",
        least=1,
        settled=True,
        identifies=True,
    ).field(None)
    epochs: int | None = Option("Epochs to train.", fallback=1, least=0, resume=CHANGE).field(None)
    iters: int | None = Option(
        "Iterations to train, instead of epochs.", least=0, instead_of="epochs", resume=CHANGE
    ).field(None)
    solver: str = Option(
        f"{', '.join(SOLVERS[:-1])} or {SOLVERS[-1]}, or a Caffe solver (.prototxt), "
        "whose settings apply unless an option is given.",
        names=SOLVERS,
    ).field("sgd")
    lr: float | None = Option(
        "Learning rate.",
        shown="the solver's own; 0.01 for sgd",
        above=0,
        settled=True,
        identifies=True,
    ).field(None)
    momentum: float | None = Option(
        "Momentum, for sgd and lars.", shown="0.9", least=0, identifies=True
    ).field(None)
    weight_decay: float | None = Option(
        "Weight decay.",
        shown="0.0005 for sgd and lars, else the solver's own",
        least=0,
        settled=True,
        identifies=True,
    ).field(None)
    lr_policy: str | None = Option(
        "How the rate changes: fixed, step:step=1000,gamma=0.1, multistep:steps=100|200, "
        "exp:gamma=0.999, inv:gamma=0.0001,power=0.75, poly:power=1, cosine, "
        "sigmoid:gamma=-0.01,step=500; each also with warmup=100.",
        fallback="fixed",
        names=POLICIES,
        resume=CHANGE,
    ).field(None)
    clip: float | None = Option(
        "Scale gradients down to this norm if theirs is larger.", above=0, identifies=True
    ).field(None)
    accumulate: int | None = Option(
        "Batches whose gradients are averaged for one update.", fallback=1, least=1, identifies=True
    ).field(None)
    precision: Literal["fp32", "tf32", "bf16", "fp16"] = Option(
        "fp32, or bf16 or fp16 for convolutions, matrix products and the ops after them; weights "
        "and losses stay in fp32, and fp16 scales the loss. On GPUs also tf32: fp32, but "
        "convolutions and matrix products use fewer bits.",
        identifies=True,
    ).field("fp32")
    seed: int | None = Option(
        "Seed of first weights, sample order and dropout.", fallback=0, least=0, identifies=True
    ).field(None)
    devices: str = Option(
        "Where to train: cpu:0 is all cores as one device; cpu:0-3 are four devices with a "
        "quarter of the cores each; cuda:0 is the first GPU; cuda:0-3 are four GPUs; all are the "
        "GPUs of the machine, or its cores; host0-1:cpu:0 are a device on each of two hosts.",
        resume=PLACE,
    ).field("cpu:0")
    parallel: str | None = Option(
        "How several devices train; auto: as `purine plan` recommends. "
        "Sizes: data=N replicas, each of pipeline=N devices in a pipeline, each of which may be "
        "model=N devices that shard layers. "
        "Replicas: shares=3:1 (batches in this proportion), hybrid=true (only inner products are "
        "sharded), batch_norm=replica|synchronised, floating=true (the next micro-batch goes to "
        "an idle CPU device), staleness=N (parameters are read N iterations late). "
        "Pipelines: micro=N micro-batches of a replica's batch (default: twice the pipeline's "
        "devices), "
        "schedule=gpipe|1f1b|interleaved|zero-bubble or a file with a grid, "
        "chunks=N stages on each device (interleaved), cut=NAME|NAME (ops where stages begin). "
        "Activation checkpointing: recompute=N blocks or NAME|NAME. "
        "Reduction of gradients: topology=sharded|server|tree|ring|native, bucket=BYTES, "
        "unit=BYTES, shared=true (hosts of one machine share memory for parameters). "
        "Asynchronous training: asynchronous=NAME, of ssp, downpour, hogwild, easgd, gossip, "
        "local and diloco; workers=N, staleness=N|any, push=N, fetch=N (downpour), every=N, "
        "alpha=X (easgd), outer_lr=X, outer_momentum=X (diloco), partners=SEED (gossip), "
        "stale_rate=true, rates=tickets|steps, servers=1 (on several hosts: no worker on the "
        "first device).",
        shown="a replica on each device",
        metavar="KEY=VALUE,...",
        resume=PLACE,
    ).field(None)
    compress: Literal["none", "fp16", "bf16", "int8", "topk"] | None = Option(
        "Compression of gradients between hosts: fp16 and bf16 (which also round the parameters "
        "that return), int8, or topk, which sends the hundredth with the largest magnitudes. "
        "int8 and topk use error feedback.",
        shown="none",  # and no fallback: jobs that were recorded without it can be resumed
        resume=PLACE,
    ).field(None)
    threads: int | None = Option(
        "Threads per kernel.",
        shown="the cores of a device",
        least=1,
        most=1024,  # more than any machine has
        settled=True,
    ).field(None)
    share_cores: bool = Option("Allow more devices than cores.", resume=PLACE).field(False)
    prefetch: int = Option(
        "Iterations that data is prefetched.",
        least=0,
        most=1000,  # each takes memory before anything is computed
        resume=CHANGE,
    ).field(2)
    out: str | None = Option(
        "Folder of the run.",
        shown="runs/NET-DATA-NUMBER",
        metavar="DIR",
        may_be_empty=True,  # the folder refuses it with a better message
        recorded=False,
        resume=CHANGE,
    ).field(None)
    save_every: int | None = Option(
        "Iterations between checkpoints. There is always one at the end.",
        shown="every epoch",
        least=1,
        resume=CHANGE,
    ).field(None)
    keep: int = Option("Number of checkpoints to keep.", least=1, resume=CHANGE).field(2)
    test_every: int | None = Option(
        "Iterations between tests. There is always one at the end.",
        shown="every epoch",
        least=1,
        resume=CHANGE,
    ).field(None)
    log_every: int | None = Option(
        "Iterations between lines of metrics.jsonl.", fallback=10, least=1, resume=CHANGE
    ).field(None)
    trace: bool = Option("Write trace.json, for Perfetto and `purine trace`.", resume=CHANGE).field(
        False
    )
    trace_iters: int = Option("Iterations in the trace.", least=1, resume=CHANGE).field(50)
    tensorboard: bool | None = Option(
        "Write metrics for TensorBoard as well, to RUN/tensorboard; needs purine[tensorboard].",
        shown="no-tensorboard",  # and no fallback: jobs that were recorded without it are resumed
        resume=CHANGE,
    ).field(None)
    layout: Literal["auto", "channels-last", "contiguous"] | None = Option(
        "Memory layout of images and filters: channels-last, contiguous, or auto, which is "
        "channels-last if convolutions are most of the work.",
        shown="auto on GPUs, else what the net's file says",
    ).field(None)
    compile: bool | None = Option(
        "Compile the step as a whole. On CPUs the first compilation takes up to a minute, few "
        "nets (such as mlp) get faster, and numbers differ by rounding.",
        shown="compile on GPUs, no-compile on CPUs",
    ).field(None)
    mean: float | tuple[float, ...] | None = Option(
        "Mean to subtract from the stored samples: a number, or R,G,B for the channels.",
        fallback=0.0,
        parse=_numbers,
        identifies=True,
    ).field(None)
    mean_file: str | None = Option(
        "Mean image to subtract instead, in Caffe's format (.binaryproto).",
        metavar="FILE",
        instead_of="mean",
    ).field(None)
    scale: float | None = Option(
        "Factor applied after the mean.",
        shown="1/255 for bytes, else 1",
        nonzero=True,
        identifies=True,
    ).field(None)
    crop: int | None = Option(
        "Crop images to this size: at random in training, the middle in tests.",
        least=1,
        identifies=True,
    ).field(None)
    pad: int = Option(
        "Zeros around images before they are cropped.", least=0, identifies=True
    ).field(0)
    mirror: bool | None = Option(
        "Mirror training images at random.", fallback=False, identifies=True
    ).field(None)


def _table() -> dict[str, Option]:
    """The options by name, each completed from its field."""
    hints = typing.get_type_hints(JobOptions)
    options: dict[str, Option] = {}
    for item in dataclasses.fields(JobOptions):
        hint = hints[item.name]
        optional = type(None) in typing.get_args(hint)
        kinds = [kind for kind in typing.get_args(hint) if kind is not type(None)]
        annotation = functools.reduce(operator.or_, kinds) if optional else hint
        literals = typing.get_args(annotation) if typing.get_origin(annotation) is Literal else ()
        option: Option = item.metadata["option"]
        options[item.name] = dataclasses.replace(
            option,
            name=item.name,
            annotation=annotation,
            default=item.default,
            optional=optional,
            names=option.names or literals,
            settled=option.settled or option.fallback is not None,
        )
    return options


OPTIONS: Mapping[str, Option] = _table()
