"""Job files: options as `key: value` lines of YAML. The config.yaml of a run is one."""

from __future__ import annotations

from pathlib import Path

from purine.errors import ConfigError, given_twice
from purine.graph.yaml import flow
from purine.graph.yaml.nodes import List, Map, Node, Scalar, describe, document, read_text
from purine.job.config import Given, Job, check_option, given_options
from purine.job.options import OPTIONS
from purine.nearest import unknown_name
from purine.parallel import Scheme

__all__ = ["job_text", "missing_keys", "read_options"]


def read_options(path: Path) -> dict[str, object]:
    """The options in a job file; every mistake is a `ConfigError` with the file and line."""
    options: dict[str, object] = {}
    for key_node, value_node in _pairs(path):
        where = f"{path}:{key_node.line}"
        key = _key(key_node, where)
        if key not in OPTIONS:
            remedy = f"remove {key!r}"
            raise unknown_name(
                ConfigError, "option", key, OPTIONS, where=where, remedy=remedy, cutoff=0.6
            )
        if key in options:
            raise given_twice(ConfigError, key, "key", where=where)
        if key == "parallel" and isinstance(value_node, Map):
            options[key] = _scheme_text(value_node, where)
        else:
            options[key] = _plain(value_node)
        check_option(key, options[key], where)
    return options


def missing_keys(options: Given) -> list[str]:
    """What options lack that every recorded job has.

    >>> missing_keys({name: 1 for name in OPTIONS if name not in ("lr", "iters")})
    ['lr']
    """
    instead = {option.instead_of: name for name, option in OPTIONS.items() if option.instead_of}
    missing = []
    for option in sorted(OPTIONS.values(), key=lambda option: option.optional):
        names = [name for name in (option.name, instead.get(option.name)) if name is not None]
        recorded = option.settled or not option.optional
        if recorded and all(options.get(name) is None for name in names):
            missing.append(" or ".join(names))
    return missing


def job_text(job: Job) -> str:
    """The job as the text of a job file that reads back to it, without the folder it writes to.

    >>> print(job_text(Job(net="mlp", iters=5)).splitlines()[0])
    net: mlp
    """
    values = {key: value for key, value in given_options(job).items() if OPTIONS[key].recorded}
    if job.parallel is not None:
        values["parallel"] = Scheme.parse(job.parallel).settings or {"data": 1}
    return "".join(f"{key}: {flow(value)}\n" for key, value in values.items())


def _scheme_text(node: Map, where: str) -> str:
    settings: dict[str, object] = {}
    try:
        for key_node, value_node in node.pairs:
            where = f"{where.rpartition(':')[0]}:{key_node.line}"
            key = _key(key_node, where)
            if key in settings:
                raise given_twice(ConfigError, key, "setting", where=where)
            settings[key] = _plain(value_node)
            Scheme.refuse_unknown(key)
        scheme = Scheme.of(settings)
    except ConfigError as error:
        error.where = error.where or where
        raise
    # The text leaves defaults out, but `data: 1` differs from no `data`: a replica on each device.
    explicit = scheme.data == 1 and "data" in settings and len(scheme.settings) > 0
    return f"data=1,{scheme}" if explicit else str(scheme)


def _pairs(path: Path) -> list[tuple[Node, Node]]:
    root = document(read_text(path, "job file", ConfigError), str(path))
    if root is None:
        return []
    if not isinstance(root, Map):
        what, expected = "a job file is a mapping", "lines of the form `key: value`"
        found = "a list (a graph?)" if isinstance(root, List) else "a single value"
        remedy = "to train a graph of your own, pass it with --net"
        raise ConfigError(what, expected, found, remedy, where=f"{path}:{root.line}")
    return root.pairs


def _key(node: Node, where: str) -> str:
    """A key, which may be written with dashes."""
    if not isinstance(node, Scalar) or not isinstance(node.value, str):
        expected, found = "lines of the form `key: value`", f"{describe(node)} as a key"
        raise ConfigError("a key is not a word", expected, found, "correct it", where=where)
    return node.value.replace("-", "_")


def _plain(node: Node) -> object:
    if isinstance(node, List):
        return tuple(_plain(item) for item in node.items)
    if isinstance(node, Map):
        return {"...": "..."}  # no option takes one
    return node.value
