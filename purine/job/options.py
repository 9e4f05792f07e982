"""The options of a training job: one table, from which everything else about them is derived.

A field of `JobOptions` declares an option: its name, type and default, and an `Option` with all
other facts. The command line and its help, the keys of job files, the checks of values, what a
resumed run may change and what identifies a run are read from this table. Nothing here imports
torch or numpy, so the help appears at once.
"""

from __future__ import annotations

import functools
import operator
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from enum import Enum, auto
from typing import Annotated

from purine.errors import ConfigError
from purine.job.names import DATA, NETS, POLICIES, SOLVERS, LayoutName, Precision

__all__ = ["BATCH", "DATA_SET", "OPTIONS", "JobOptions", "Option", "Resume"]

BATCH = 64
"""Samples in a batch, for a net of the zoo."""
DATA_SET = "fashion-mini"
"""The data of a net that names none."""


class Resume(Enum):
    """What a resumed run does with an option that is given."""

    SAME = auto()  # it must be what the run was started with
    CHANGE = auto()  # it may differ; the run may not end sooner or change its learning rate
    PLACE = auto()  # it moves the run to other devices, or shares its cores
    IGNORE = auto()  # it only concerns the start of a run


@dataclass(frozen=True, kw_only=True)
class Option:
    """Facts about an option. `name`, `annotation` and `default` come from its field.

    `annotation` is the type of a given value; `optional` options may be None as well, which leaves
    them to the net, the solver or the machine. `fallback` is the value where nothing else decides.
    The plan of a job always `settles` some options, so every recorded job has them. `instead_of`
    names the option that this one replaces: a job has at most one of the two.
    """

    help: str
    name: str = ""
    annotation: object = None
    default: object = None
    optional: bool = False
    fallback: object = None
    default_text: str | None = None  # in the help; by default the default or the fallback
    metavar: str | None = None
    names: tuple[str, ...] = ()  # that the shell completes
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
        if self.default_text is not None or value is None:
            return self.default_text
        if isinstance(value, bool):
            return f"{'' if value else 'no-'}{self.name.replace('_', '-')}"
        return f"{value:g}" if isinstance(value, float) else str(value)

    def from_command_line(self, value: object) -> object:
        """The value of the option that arguments of the command line stand for."""
        if isinstance(value, list | tuple):
            return ",".join(value)
        return self.parse(value) if self.parse is not None and isinstance(value, str) else value


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


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """The table: a field for each option. `purine.job.Job` adds the checks of values.

    `mirror` is last because every recorded job has it: a config.yaml that was cut short lacks it.
    """

    net: Annotated[
        str,
        Option(
            help=f"A net by name ({', '.join(NETS)}), a graph in a .yaml file, or a Caffe net "
            "(.prototxt).",
            names=NETS,
        ),
    ] = "lenet"
    test_net: Annotated[
        str | None,
        Option(
            help="Another net with the same parameters for tests, in a file.",
            default_text="the net itself",
        ),
    ] = None
    data: Annotated[
        str | None,
        Option(
            help="fashion-mini, synthetic:image=CxHxW,classes=N,count=N, synthetic-masks (the "
            "same, for pixels), synthetic-tokens:length=N,vocabulary=N,count=N, a folder of IDX or "
            ".npy files, a .npz file, or lmdb:TRAIN,TEST, hdf5:TRAIN,TEST, image-list:TRAIN,TEST.",
            default_text=f"what a Caffe net names, else {DATA_SET}",
            names=DATA,
            settled=True,
        ),
    ] = None
    weights: Annotated[
        str | None,
        Option(
            help="Values to start from, of which later ones win: Caffe weights (.caffemodel) for a "
            "Caffe net, or a .safetensors file by names of states. May be given several times.",
            default_text="the net's fillers",
            metavar="FILE",
            repeated=True,
            resume=Resume.IGNORE,
        ),
    ] = None
    batch: Annotated[
        int | None,
        Option(
            help="Samples in a batch, of all devices.",
            default_text=f"{BATCH}, or what the net's file says",
            least=1,
            settled=True,
            identifies=True,
        ),
    ] = None
    epochs: Annotated[
        int | None,
        Option(help="Epochs to train.", fallback=1, least=0, settled=True, resume=Resume.CHANGE),
    ] = None
    iters: Annotated[
        int | None,
        Option(
            help="Iterations to train, instead of epochs.",
            least=0,
            instead_of="epochs",
            resume=Resume.CHANGE,
        ),
    ] = None
    solver: Annotated[
        str,
        Option(
            help=f"{', '.join(SOLVERS[:-1])} or {SOLVERS[-1]}, or a Caffe solver (.prototxt), "
            "whose settings count where no option is given.",
            names=SOLVERS,
        ),
    ] = "sgd"
    lr: Annotated[
        float | None,
        Option(
            help="Learning rate.",
            default_text="the solver's own; 0.01 for sgd",
            above=0,
            settled=True,
            identifies=True,
        ),
    ] = None
    momentum: Annotated[
        float | None,
        Option(help="Momentum, for sgd and lars.", default_text="0.9", least=0, identifies=True),
    ] = None
    weight_decay: Annotated[
        float | None,
        Option(
            help="Weight decay.",
            default_text="0.0005 for sgd and lars, else the solver's own",
            least=0,
            settled=True,
            identifies=True,
        ),
    ] = None
    lr_policy: Annotated[
        str | None,
        Option(
            help="How the rate changes: fixed, step:step=1000,gamma=0.1, multistep:steps=100|200, "
            "exp:gamma=0.999, inv:gamma=0.0001,power=0.75, poly:power=1, cosine, "
            "sigmoid:gamma=-0.01,step=500; each also with warmup=100.",
            fallback="fixed",
            names=POLICIES,
            settled=True,
            resume=Resume.CHANGE,
        ),
    ] = None
    clip: Annotated[
        float | None,
        Option(
            help="Scale gradients down to this norm where it is larger.", above=0, identifies=True
        ),
    ] = None
    accumulate: Annotated[
        int | None,
        Option(
            help="Batches whose gradients are averaged for one update.",
            fallback=1,
            least=1,
            settled=True,
            identifies=True,
        ),
    ] = None
    precision: Annotated[
        Precision,
        Option(
            help="fp32, or bf16 or fp16 for convolutions, products and what follows them; weights "
            "and losses stay in fp32, and fp16 scales the loss. On GPUs also tf32: fp32 with "
            "convolutions and products of fewer bits.",
            names=typing.get_args(Precision),
            identifies=True,
        ),
    ] = "fp32"
    seed: Annotated[
        int | None,
        Option(
            help="Decides first weights, order of samples and dropout.",
            fallback=0,
            least=0,
            settled=True,
            identifies=True,
        ),
    ] = None
    devices: Annotated[
        str,
        Option(
            help="Where to train: cpu:0 is all cores of the machine; cpu:0-3 are four devices with "
            "a quarter of them each; cuda:0 is the first GPU; cuda:0-3 are four GPUs.",
            resume=Resume.PLACE,
        ),
    ] = "cpu:0"
    parallel: Annotated[
        str | None,
        Option(
            help="How several devices train: data=N replicas, each a pipeline of pipeline=N "
            "devices, each of which is cut over model=N (hybrid=true: convolutions share out the "
            "batch). Also micro=N micro-batches of a replica's batch (twice the pipeline's "
            "devices), schedule=gpipe|1f1b|interleaved|zero-bubble or a file with a grid, chunks=N "
            "stages on each device (interleaved), cut=NAME|NAME where stages begin, recompute=N "
            "blocks or NAME|NAME, topology=sharded|server|tree|ring|native, "
            "batch_norm=replica|synchronised, bucket=BYTES.",
            default_text="a replica on each device",
            metavar="KEY=VALUE,...",
            resume=Resume.PLACE,
        ),
    ] = None
    threads: Annotated[
        int | None,
        Option(
            help="Threads that one kernel may use: the cores of a device.",
            default_text="all, shared out",
            least=1,
            most=1024,  # more than any machine has
            settled=True,
        ),
    ] = None
    share_cores: Annotated[
        bool,
        Option(help="Let more devices than there are cores for share them.", resume=Resume.PLACE),
    ] = False
    prefetch: Annotated[
        int,
        Option(
            help="Iterations that data is read ahead.",
            least=0,
            most=1000,  # each takes memory before anything is computed
            resume=Resume.CHANGE,
        ),
    ] = 2
    out: Annotated[
        str | None,
        Option(
            help="Folder of the run.",
            default_text="runs/NET-DATA-NUMBER",
            metavar="DIR",
            may_be_empty=True,  # the folder refuses it with a better message
            recorded=False,
            resume=Resume.CHANGE,
        ),
    ] = None
    save_every: Annotated[
        int | None,
        Option(
            help="Iterations between checkpoints; one more at the end.",
            default_text="every epoch",
            least=1,
            resume=Resume.CHANGE,
        ),
    ] = None
    keep: Annotated[
        int, Option(help="Newest checkpoints to keep.", least=1, resume=Resume.CHANGE)
    ] = 2
    test_every: Annotated[
        int | None,
        Option(
            help="Iterations between tests; one more at the end.",
            default_text="every epoch",
            least=1,
            resume=Resume.CHANGE,
        ),
    ] = None
    log_every: Annotated[
        int | None,
        Option(
            help="Iterations between lines of metrics.jsonl.",
            fallback=10,
            least=1,
            settled=True,
            resume=Resume.CHANGE,
        ),
    ] = None
    trace: Annotated[
        bool,
        Option(help="Write trace.json, for Perfetto and `purine trace`.", resume=Resume.CHANGE),
    ] = False
    trace_iters: Annotated[
        int, Option(help="Iterations in the trace.", least=1, resume=Resume.CHANGE)
    ] = 50
    layout: Annotated[
        LayoutName | None,
        Option(
            help="How images and filters lie in memory: channels-last, contiguous, or auto, which "
            "is channels-last where most of the work is convolutions.",
            default_text="auto on GPUs, else what the net's file says",
            names=typing.get_args(LayoutName),
        ),
    ] = None
    compile: Annotated[
        bool | None,
        Option(
            help="Compile the step as a whole. On CPUs that takes up to a minute the first time, "
            "is quicker for nets like mlp and not for others, and gives numbers of other rounding.",
            default_text="compile on GPUs, no-compile on CPUs",
        ),
    ] = None
    mean: Annotated[
        float | tuple[float, ...] | None,
        Option(
            help="Subtracted from the samples as stored: a number, or one a channel as R,G,B.",
            fallback=0.0,
            parse=_numbers,
            settled=True,
            identifies=True,
        ),
    ] = None
    mean_file: Annotated[
        str | None,
        Option(
            help="Subtracted instead: a mean image as Caffe writes it (.binaryproto).",
            metavar="FILE",
            instead_of="mean",
        ),
    ] = None
    scale: Annotated[
        float | None,
        Option(
            help="Factor after the mean.",
            default_text="1/255 for bytes, else 1",
            nonzero=True,
            identifies=True,
        ),
    ] = None
    crop: Annotated[
        int | None,
        Option(
            help="Size of the part cut from images: at random, in tests from the middle.",
            least=1,
            identifies=True,
        ),
    ] = None
    pad: Annotated[
        int,
        Option(help="Zeros around images before they are cropped.", least=0, identifies=True),
    ] = 0
    mirror: Annotated[
        bool | None,
        Option(
            help="Mirror images at random, not in tests.",
            fallback=False,
            settled=True,
            identifies=True,
        ),
    ] = None


def _table() -> dict[str, Option]:
    """The options by name, each with what its field says of it."""
    hints = typing.get_type_hints(JobOptions, include_extras=True)
    options: dict[str, Option] = {}
    for item in fields(JobOptions):
        annotation, option = typing.get_args(hints[item.name])
        kinds = typing.get_args(annotation) if type(None) in typing.get_args(annotation) else ()
        given = [kind for kind in kinds if kind is not type(None)] or [annotation]
        options[item.name] = replace(
            option,
            name=item.name,
            annotation=functools.reduce(operator.or_, given),
            default=item.default,
            optional=bool(kinds),
        )
    return options


OPTIONS: Mapping[str, Option] = _table()
