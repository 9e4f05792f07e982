"""From a net to a training step: one ordered list of transforms.

`RECIPE` is that list. A job on one device, a job with a scheme of parallelism, a Caffe solver and
`compose` all follow it; they differ in their `Settings` alone. The net that is given is that of the
whole batch, and the step trains as that net does on one device. Accumulated batches are more
micro-batches of the same schedule: a pipeline is filled and emptied once for an update.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod

from purine.analysis.infer import with_batch
from purine.analysis.sample_rules import is_batch_norm
from purine.analysis.samples import MIXED
from purine.arguments import at_least, checked
from purine.autodiff import backward, losses_of
from purine.autodiff.batch_marks import batch_of_net
from purine.errors import ConfigError
from purine.graph import Graph, Location
from purine.optimize import fuse, join, layout, mixed, recompute
from purine.parallel.accumulate import accumulate as accumulated
from purine.parallel.compress import compress as compressed
from purine.parallel.cut import balanced_cut, first_ops
from purine.parallel.delay import delay
from purine.parallel.floating import floating
from purine.parallel.halves import samples_of
from purine.parallel.hybrid import hybrid
from purine.parallel.pipeline import pipeline
from purine.parallel.replicate import replicate
from purine.parallel.scheme import Scheme
from purine.parallel.serve import serve
from purine.parallel.shard import shard
from purine.placement.devices import as_locations, devices_of, is_cpu, wrong_devices
from purine.placement.place import to_devices
from purine.solvers.clip import clip_by_norm

__all__ = ["RECIPE", "Settings", "compose", "describe", "fused", "make_step", "refuse_devices"]

_HERE = (Location(),)
_ONE_DEVICE = Scheme()


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that a step depends on besides its net.

    `solver` adds the updates to a net with gradients. An update is made of `accumulate` batches
    that count as one large batch; of `iter_size` batches where each has a loss of its own, as with
    Caffe's setting of that name. `precision` is an argument of `mixed`, `form` one of `layout`;
    None leaves the graph as it is. `compress` is the method by which gradients go between
    hosts. `compiled` fuses the ops between two transfers into one. With `host`, the step is what
    this host needs of replicas on several hosts, where their scheme allows it. `share` is the
    number of a scheme's equal parts of the batch that a replica has.
    """

    solver: Callable[[Graph], Graph]
    devices: tuple[Location, ...] = _HERE
    scheme: Scheme = _ONE_DEVICE
    clip: float | None = None
    accumulate: int = 1
    iter_size: int = 1
    precision: str | None = None
    form: str | None = None
    compress: str | None = None
    compiled: bool = False
    host: str | None = None
    share: int = 1

    def __post_init__(self) -> None:
        refuse_devices(self.scheme, self.devices)
        if self.compiled and self.scheme.asynchronous is not None:
            raise ConfigError(
                "steps of workers cannot be compiled",
                expected="compiled=False with workers",
                found=f"asynchronous={self.scheme.asynchronous.scheme}",
                remedy="leave compiled (--compile) out, or asynchronous",
            )
        at_least("accumulate", self.accumulate, 1)
        at_least("iter_size", self.iter_size, 1)

    @property
    def micro_batches(self) -> int:
        """How many micro-batches of a replica make an update."""
        return self.scheme.micro_batches * self.accumulate


@dataclass(frozen=True, slots=True)
class Stage:
    """A transform of the recipe: its name, its reason, when it applies and what it does."""

    name: str
    why: str
    applies: Callable[[Settings], bool]
    transform: Callable[[Graph, Settings], Graph]


def make_step(net: Graph, settings: Settings) -> Graph:
    """The training step of a net: the stages of `RECIPE` that apply, one after the other.

    Where replicas have unequal shares of the batch, a step is made for each share, up to the stage
    that puts them on their devices.
    """
    settings = replace(settings, scheme=settings.scheme.synchronous())
    ratio = settings.scheme.ratio
    if len(set(ratio)) == 1:
        return _through(RECIPE, net, settings)
    names = [stage.name for stage in RECIPE]
    place, pipe = names.index("place"), names.index("pipeline")
    settings = replace(settings, share=max(ratio))
    if settings.scheme.pipeline > 1 and not settings.scheme.cut:
        step = _through(RECIPE[:pipe], net, settings)
        stages = settings.scheme.grid(settings.accumulate).stages
        cut = first_ops(step, balanced_cut(step, stages))  # the same for replicas of any batch
        settings = replace(settings, scheme=replace(settings.scheme, cut=cut))
    steps = {
        share: _through(RECIPE[:place], net, replace(settings, share=share))
        for share in sorted(set(ratio))
    }
    placed = _placed([steps[share] for share in ratio], settings)
    return _through(RECIPE[place + 1 :], placed, settings)


def _through(stages: Iterable[Stage], graph: Graph, settings: Settings) -> Graph:
    for stage in stages:
        if stage.applies(settings):
            graph = stage.transform(graph, settings)
    return graph


def describe(settings: Settings) -> tuple[str, ...]:
    """The stages that apply, a line for each.

    >>> from functools import partial
    >>> import purine as pu
    >>> solver = partial(pu.solvers.sgd, lr=0.1)
    >>> print(*describe(Settings(solver=solver, clip=1.0)), sep="\\n")
    backward: adds the gradients of all parameters
    clip: scales gradients down where their norm is too large
    solver: adds an update of each parameter
    """
    return tuple(f"{stage.name}: {stage.why}" for stage in RECIPE if stage.applies(settings))


@checked
def compose(
    net: Graph,
    *,
    solver: Callable[[Graph], Graph],
    devices: str | Iterable[str | Location],
    clip: float | None = None,
    accumulate: int = 1,
    precision: str | None = None,
    compress: str | None = None,
    scheme: Scheme | None = None,
    host: str | None = None,
    **settings: object,
) -> Graph:
    """The training step of a net on several devices, by a scheme or by the settings of one.

    `solver` makes a step of a net with gradients, which are clipped to the norm `clip` before it.
    An update is made of `accumulate` batches of the net. `precision` is what `mixed` takes, or
    None for the net as it is. `compress` is what `parallel.compress` takes for a step on several
    hosts, or None. With `host`, the step is what this host needs of replicas on several hosts:
    its own part, and what it exchanges with the others. Without settings every device has a
    replica; the settings are those of `Scheme`, such as `data=2, shares=(3, 1)` for two replicas
    with three and one quarter of the batch.

    >>> import purine as pu
    >>> step = compose(
    ...     pu.zoo.lenet(batch=32),
    ...     solver=lambda graph: pu.solvers.sgd(graph, lr=0.1),
    ...     devices="cpu:0-3",
    ...     data=2,
    ...     pipeline=2,
    ... )
    >>> len(pu.parallel.devices_of(step)), step.blobs["replica1/micro3/data"].shape
    (4, (4, 1, 28, 28))
    """
    locations = as_locations(devices)
    if scheme is None:
        scheme = Scheme.of(settings) if settings else Scheme(data=max(1, len(locations)))
    given = Settings(solver=solver, devices=locations, scheme=scheme, clip=clip)
    given = replace(given, accumulate=accumulate, precision=precision, compress=compress)
    return make_step(net, replace(given, host=host))


def fused(step: Graph, *_: Settings) -> Graph:
    """The step with one op for what a GPU does between two transfers; on CPUs alone, for each."""
    gpus = {op.location.device for op in step.ops.values() if not is_cpu(op.location)}
    return fuse(step, devices=sorted(gpus) or None)


def refuse_devices(scheme: Scheme, locations: tuple[Location, ...]) -> None:
    """Raise `ConfigError` unless there are as many devices as the scheme is for."""
    if scheme.devices != len(locations):
        factors = {"data": scheme.data, "pipeline": scheme.pipeline, "model": scheme.model}
        if scheme.asynchronous is not None:
            factors = {"workers": scheme.workers, **factors}
        product = " * ".join(f"{name} {count}" for name, count in factors.items())
        product = f"servers {scheme.servers} + {product}" if scheme.servers else product
        what = f"the scheme is for {scheme.devices} devices, and {len(locations)} are named"
        remedy = "name as many devices, or change data, pipeline and model"
        expected = f"{product} = {scheme.devices} devices"
        raise wrong_devices(what, expected, locations[:16], remedy)


def _part_of_batch(net: Graph, settings: Settings) -> Graph:
    """The net for one of the parts that the batch is cut into."""
    scheme = settings.scheme
    whole = rest = samples_of(net)
    for name, count in scheme.parts.items():
        if rest % count:
            raise _indivisible(scheme, whole, rest, name)
        rest //= count
    return with_batch(net, rest * settings.share)


def _indivisible(scheme: Scheme, whole: int, rest: int, name: str) -> ConfigError:
    """The error for a batch of which `rest` samples cannot be cut by a setting of the scheme."""
    parts, named = scheme.parts, {key: f"{key} {value}" for key, value in scheme.parts.items()}
    count, other = prod(parts.values()), f"another {name}"
    why = f"{named[name]} does not divide {rest}"
    if scheme.shares:
        named["data"] = f"shares {_text(scheme.shares)}"
    if scheme.shares and name == "data":
        why = f"{' + '.join(map(str, scheme.ratio))} = {parts[name]} does not divide {rest}"
        units, left = divmod(whole, count // parts[name])
        fits = not left and units >= scheme.data
        other = f"shares={_text(_nearest(scheme.ratio, units))}" if fits else "other shares"
    cut = " * ".join(named[key] for key, value in parts.items() if value > 1)
    return ConfigError(
        f"a batch of {whole} cannot be cut by {cut}: {why}",
        expected=f"a multiple of {count} samples",
        found=f"a batch of {whole}",
        remedy=f"use a batch of {-(-whole // count) * count}, or {other}",
    )


def _text(shares: Sequence[int]) -> str:
    return ":".join(map(str, shares))


def _nearest(ratio: tuple[int, ...], units: int) -> tuple[int, ...]:
    """Whole numbers, 1 or more, whose sum is `units`, nearly in this proportion."""
    exact = [units * share / sum(ratio) for share in ratio]
    counts = [max(1, int(value)) for value in exact]
    while sum(counts) != units:
        step = 1 if sum(counts) < units else -1
        open_to = [k for k, count in enumerate(counts) if count + step > 0]
        k = max(open_to, key=lambda k: step * (exact[k] - counts[k]))
        counts[k] += step
    return tuple(counts)


def _always(settings: Settings) -> bool:
    return True


def _gathered(net: Graph, settings: Settings) -> Graph:
    """A net that mixes samples, laid over all replicas: one device computes what mixes them.

    Other nets stay as they are. So do those with synchronised batch norm: `replicate` refuses them.
    """
    scheme = settings.scheme
    batch = batch_of_net(net, losses_of(net))
    mixes = any(relation is MIXED for relation in batch.relations.values())
    normalises = any(is_batch_norm(op) for op in net.ops.values())
    synchronised = scheme.batch_norm == "synchronised" and normalises
    if not mixes or batch.reduced or synchronised:
        return net
    if len(set(scheme.ratio)) > 1:
        raise ConfigError(
            "the net reads the samples of a batch together, and the shares are unequal",
            op=batch.mixing[0],
            expected="equal shares of the batch, or ops that treat samples one by one",
            found=f"shares={_text(scheme.shares)}",
            remedy="leave shares out",
        )
    return hybrid(net, _first(scheme.data), split=batch.mixing, cut=False)


def _pipelined(step: Graph, settings: Settings) -> Graph:
    scheme = settings.scheme
    return pipeline(
        step,
        devices=_first(scheme.model * scheme.pipeline),
        micro=settings.micro_batches,
        schedule=scheme.grid(settings.accumulate),
        cut=scheme.cut or None,
    )


def _placed(steps: Sequence[Graph], settings: Settings) -> Graph:
    """The step, or those of all replicas, on their devices, which must all have work."""
    scheme, locations = settings.scheme, settings.devices
    if scheme.asynchronous is not None:  # a worker's devices stand for those of all
        locations = as_locations(_first(scheme.group))
    stands_for = as_locations(_first(scheme.pipeline * scheme.model))
    used = devices_of(steps[0])
    idle = [k for k, location in enumerate(stands_for) if location not in used]
    if idle:  # they would be taken for the devices of further replicas
        pipes = scheme.pipeline > 1
        raise ConfigError(
            f"{len(idle)} of the {len(stands_for)} devices of a replica would have no work",
            expected=f"layers to cut over {scheme.model} devices" + " in every stage" * pipes,
            found="nothing to compute at " + ", ".join(locations[k].device for k in idle),
            remedy="ask for fewer devices" + ", or name the stages with cut" * pipes,
        )
    if scheme.data == 1:
        return to_devices(steps[0], dict(zip(used, locations, strict=True)))
    return replicate(
        steps,
        locations,
        topology=scheme.topology,
        bucket=scheme.bucket,
        unit=scheme.unit,
        shared=scheme.shared,
        batch_norm=scheme.batch_norm,
        only=settings.host,
    )


def _first(count: int) -> str:
    """The devices that stand for those of a replica until the step is replicated."""
    return f"cpu:0-{count - 1}"


RECIPE: tuple[Stage, ...] = (
    Stage(
        "part",
        "gives the net the batch of one micro-batch of one replica",
        lambda s: prod(s.scheme.parts.values()) > 1,
        _part_of_batch,
    ),
    Stage(
        "join",
        "makes one convolution of those that read the same blob: GPUs prefer few large kernels",
        # Where layers are cut over devices, they must read their parameters directly.
        lambda s: s.scheme.model == 1 and not any(map(is_cpu, s.devices)),
        lambda net, s: join(net),
    ),
    Stage(
        "gather",
        "lets one replica compute what mixes the samples of a batch",
        lambda s: s.scheme.data == s.scheme.group > 1 and s.micro_batches == 1,
        _gathered,
    ),
    Stage(
        "shard",
        "cuts layers over the devices of a stage",
        lambda s: s.scheme.model > 1 and not s.scheme.hybrid,
        lambda net, s: shard(net, _first(s.scheme.model)),
    ),
    Stage(
        "hybrid",
        "shares out the batch before the first inner product, and cuts layers from there on",
        lambda s: s.scheme.model > 1 and s.scheme.hybrid,
        lambda net, s: hybrid(net, _first(s.scheme.model)),
    ),
    Stage(
        "mixed",
        "casts what is computed in low precision",
        lambda s: s.precision is not None,
        lambda net, s: net if s.precision is None else mixed(net, s.precision),
    ),
    Stage(
        "backward", "adds the gradients of all parameters", _always, lambda net, s: backward(net)
    ),
    Stage(
        "iter_size",
        "averages the gradients of batches that have a loss each, as Caffe does",
        lambda s: s.iter_size > 1,
        lambda step, s: accumulated(step, s.iter_size, together=False),
    ),
    Stage(
        "clip",
        "scales gradients down where their norm is too large",
        lambda s: s.clip is not None,
        lambda step, s: step if s.clip is None else clip_by_norm(step, s.clip),
    ),
    Stage("solver", "adds an update of each parameter", _always, lambda step, s: s.solver(step)),
    Stage(
        "pipeline",
        "cuts the net into stages, through which micro-batches flow in the order of a schedule",
        lambda s: s.scheme.pipeline > 1,
        _pipelined,
    ),
    Stage(
        "accumulate",
        "makes one update for several micro-batches",
        lambda s: s.scheme.pipeline == 1 and s.micro_batches > 1,
        lambda step, s: accumulated(step, s.micro_batches, chained=not s.scheme.floating),
    ),
    Stage(
        "recompute",
        "computes activations again in the backward instead of keeping them",
        lambda s: s.scheme.recompute is not None,
        lambda step, s: recompute(step, s.scheme.recompute) if s.scheme.recompute else step,
    ),
    Stage(
        "place",
        "puts a replica on each group of devices, and all-reduces gradients between them",
        lambda s: s.devices != _HERE,
        lambda step, s: _placed([step], s),
    ),
    Stage(
        "floating",
        "lets whichever device is free compute the next micro-batch",
        lambda s: s.scheme.floating,
        lambda step, s: floating(step),
    ),
    Stage(
        "layout",
        "orders the axes of images in memory as the kernels of the device prefer",
        lambda s: s.form is not None,
        lambda step, s: step if s.form is None else layout(step, s.form),
    ),
    Stage(
        "delay",
        "lets an iteration begin before the updates of those before it are made",
        lambda s: s.scheme.staleness > 0,
        lambda step, s: delay(step, s.scheme.staleness),
    ),
    Stage(
        "compress",
        "encodes gradients, and parameters on their way back, where they go between hosts",
        lambda s: s.compress is not None,
        lambda step, s: step if s.compress is None else compressed(step, s.compress),
    ),
    Stage(
        "serve",
        "makes a worker of each group of devices; workers share parameters and do not wait",
        lambda s: s.scheme.asynchronous is not None,
        lambda step, s: serve(step, s.devices, rule) if (rule := s.scheme.asynchronous) else step,
    ),
    Stage(
        "fuse",
        "makes one op, which is compiled, of what a device does between two transfers",
        lambda s: s.compiled,
        fused,
    ),
)
"""The stages in their order.

Gradients are clipped and parameters updated before the step is cut or repeated: these transforms
repeat what is done for every part of a batch, and keep what is done once.
"""
