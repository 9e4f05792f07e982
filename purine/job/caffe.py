"""Jobs from Caffe definitions: prototxt files as options of a job and as graphs.

A definition sets only the options that were not given.
"""

from __future__ import annotations

import shlex
from dataclasses import fields, replace
from functools import partial
from pathlib import Path

from purine.data import Source
from purine.errors import ConfigError
from purine.files import expanded
from purine.graph import NOTHING, Builder, Graph
from purine.importers.caffe import CaffeSolver, Imported, from_caffe
from purine.importers.caffe.definition import (
    is_solver,
    nets_of_solver,
    read_definition,
    read_solver,
)
from purine.importers.caffe.files import within
from purine.importers.caffe.net import layers_of
from purine.job.config import Job, fill
from purine.solvers import POLICIES, Rate, Warmup

__all__ = [
    "caffe_data",
    "caffe_net",
    "caffe_options",
    "caffe_solver",
    "is_prototxt",
    "same_solver",
    "with_solver",
    "with_transform",
]


def is_prototxt(path: str | Path) -> bool:
    """Whether a path is that of a Caffe definition."""
    return Path(path).suffix == ".prototxt"


def caffe_options(path: Path, *, net: bool = True) -> dict[str, str]:
    """The options of a definition that is given as the job; without `net` only those of a
    solver."""
    file = str(expanded(path).resolve())
    if not is_solver(path):
        return {"net": file}
    read_solver(path)  # refuses wrong settings before the nets are looked for
    if not net:
        return {"solver": file}
    train, test = nets_of_solver(path)
    options = {"net": str(train), "solver": file}
    return options if test is None else {**options, "test_net": str(test)}


def caffe_data(job: Job) -> str:
    """The data that the definition `job.net` names, as a job names it."""
    path, solver, test = _files(job)
    try:
        imported = from_caffe(path, solver=solver, test=test, batch=job.batch, crop=job.crop)
    except ConfigError as error:  # a source that does not tell the size of its samples
        error.remedy = "name data with --data, such as --data lmdb:TRAIN,TEST"
        raise
    return imported.data_text()


def caffe_net(job: Job, source: Source) -> Imported:
    """The nets that `job.net` defines, for samples of the source."""
    path, solver, test = _files(job)
    first, *others = source.fields
    shapes = {}
    definition = read_definition(path, solver=solver, test=test)
    for phase in (definition.train, definition.test):
        for layer in layers_of(*phase):
            if not layer.all("bottom"):
                for top, field in zip(layer.all("top")[1:], others, strict=False):
                    shapes[top] = field.shape
    make = partial(from_caffe, path, solver=solver, test=test, batch=job.batch, crop=job.crop)
    imported = _with_mean(job, make(image=first.shape, shapes=shapes))
    tested = None if imported.test is None else _with_all_fields(imported.test, source)
    return replace(imported, net=_with_all_fields(imported.net, source), test=tested)


def with_transform(job: Job, imported: Imported) -> Job:
    """The job with the transforms of the definition for options that it leaves open."""
    settings = imported.transform.settings()
    if job.mean_file is not None or imported.transform.mean_image is not None:
        del settings["mean"]  # a mean image is not an option: with one, `mean` stays open
    return fill(job, settings)


def caffe_solver(job: Job) -> CaffeSolver | None:
    """The solver that the job names, with the job's options in it; None for one of ours."""
    if not is_prototxt(job.solver):
        return None
    solver = read_solver(job.solver)
    if job.momentum and solver.type in ("AdaGrad", "RMSProp"):
        what, expected = f"solver {solver.type} takes no momentum", "momentum 0"
        found, remedy = f"momentum {job.momentum}", "leave --momentum out, or use another solver"
        raise ConfigError(what, expected, found, remedy, where=job.solver)
    return solver


def with_solver(job: Job, solver: CaffeSolver) -> Job:
    """The job with the settings of a Caffe solver for options that it leaves open."""
    if job.epochs is None and job.iters is None:
        job = replace(job, iters=solver.max_iter)
    assert not isinstance(solver.rate, Warmup), "Caffe has no warm-up"
    settings = {
        "lr": solver.rate.lr,
        "lr_policy": _policy(solver.rate),
        "momentum": solver.momentum,
        "weight_decay": solver.weight_decay,
        "clip": solver.clip_gradients,
        "accumulate": solver.iter_size,
        "seed": solver.random_seed,
        "log_every": solver.display,
        "test_every": solver.test_interval,
        "save_every": solver.snapshot,
    }
    return fill(job, settings)


def same_solver(first: str, second: str) -> bool:
    """Whether two solver files ask for the same training, whatever nets they name."""
    one, two = (replace(read_solver(path), net=None, test_net=None) for path in (first, second))
    return one == two


def _files(job: Job) -> tuple[Path, str | None, str | None]:
    """The definitions that a job names: its net, its solver and a separate test net."""
    solver = job.solver if is_prototxt(job.solver) else None
    test = job.test_net if job.test_net and is_prototxt(job.test_net) else None
    net = expanded(job.net)
    if (solver is None or Path(solver).resolve() != net.resolve()) and is_solver(net):
        expected = "--net with a net; a solver is a job, or goes with --solver"
        found, remedy = f"--net {job.net}", f"write purine train {shlex.quote(job.net)}"
        raise ConfigError("this is a solver, not a net", expected, found, remedy, where=str(net))
    return net, solver, test


def _with_mean(job: Job, imported: Imported) -> Imported:
    """Refuse a definition whose mean image is missing, unless the job has a mean."""
    transform = imported.transform
    if transform.missing_mean is None or transform.mean_image is not None:
        return imported
    where, name = transform.missing_mean
    if job.mean is None and job.mean_file is None:
        what, expected = f"the mean image {name!r} is not there", f"a file {within(imported.roots)}"
        remedy = (
            "say where it is with --mean-file, or give numbers with --mean; "
            "--mean 0 subtracts nothing"
        )
        raise ConfigError(what, expected, "nothing at this path", remedy, where=where)
    notes = tuple(note for note in imported.notes if note != transform.left_out)
    return replace(imported, notes=notes)


def _policy(rate: Rate) -> str:
    """The rate as the text of `--lr-policy`, without its end, which is that of the job."""
    (name,) = (name for name, policy in POLICIES.items() if policy is type(rate))
    settings = [
        f"{key}={'|'.join(map(str, value)) if isinstance(value, tuple) else repr(value)}"
        for key, value in ((item.name, getattr(rate, item.name)) for item in fields(rate))
        if key not in ("lr", "max_iterations")
    ]
    return f"{name}:{','.join(settings)}" if settings else name


def _with_all_fields(net: Graph, source: Source) -> Graph:
    """The net whose `Data` ops have an output for each field of the data, used or not."""
    builder = Builder(net)
    for op in net.ops.values():
        if op.kind == "Data" and len(op.outputs) < len(source.fields):
            missing = (NOTHING,) * (len(source.fields) - len(op.outputs))
            builder.ops[op.name] = replace(op, outputs=(*op.outputs, *missing))
    return builder.graph()
