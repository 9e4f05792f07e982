"""The files of a Caffe definition: which of them holds what, and the states of the nets in it.

A definition is a net, or a solver that names or holds nets. Whatever is read here is a message of
the right form; nothing is translated yet.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from purine.errors import FormatError
from purine.files import expanded
from purine.importers.caffe.files import read_bytes
from purine.importers.caffe.net import NetState
from purine.importers.caffe.schema import Node, read
from purine.importers.caffe.solver import CaffeSolver, solver_of
from purine.importers.caffe.tables import MESSAGES
from purine.importers.caffe.text import parse

__all__ = ["Definition", "is_solver", "nets_of_solver", "read_definition", "read_solver"]

_NET_FIELDS = MESSAGES["NetParameter"].keys() - MESSAGES["SolverParameter"].keys()
_SOLVER_FIELDS = MESSAGES["SolverParameter"].keys() - MESSAGES["NetParameter"].keys()


@dataclass(frozen=True, slots=True)
class Definition:
    """The nets of both phases as messages, each with the state it is in, and the solver."""

    train: tuple[Node, NetState]
    test: tuple[Node, NetState]
    solver: CaffeSolver | None = None


def read_definition(
    path: str | os.PathLike[str],
    *,
    solver: str | os.PathLike[str] | None = None,
    test: str | os.PathLike[str] | None = None,
) -> Definition:
    """The definition at `path`, which is a net or a solver; `test` is a test net's own file."""
    if solver is None and is_solver(path):
        solver = path
    node = None if solver is None else _message(solver, "SolverParameter")
    if node is not None and solver is not None and Path(path) == Path(solver):
        train, own = _held(node, Path(solver))
    else:
        train = own = _message(path, "NetParameter")
    tested = own if test is None else _message(test, "NetParameter")
    if node is None:
        return Definition(_in_state(train, "TRAIN"), _in_state(tested, "TEST"))
    return Definition(
        _in_state(train, "TRAIN", node.message("train_state")),
        _in_state(tested, "TEST", *node.all("test_state")[:1]),
        solver_of(node),
    )


def read_solver(path: str | os.PathLike[str]) -> CaffeSolver:
    """The settings in a solver's file."""
    return solver_of(_message(path, "SolverParameter"))


def nets_of_solver(path: str | os.PathLike[str]) -> tuple[Path, Path | None]:
    """The files of the nets that a solver trains and tests with.

    A net within the solver's file is that file; the second is None where it is the first again.
    """
    node = _message(path, "SolverParameter")
    if "net_param" in node or "train_net_param" in node:
        return Path(path).resolve(), None
    train = _file(node, "train_net" if "train_net" in node else "net", Path(path))
    if "net" in node or "test_net" not in node:
        return train, None
    return train, _file(node, "test_net", Path(path))


def is_solver(path: str | os.PathLike[str]) -> bool:
    """Whether a prototxt file holds a solver rather than a net, by the fields that it has."""
    names = [entry.name for entry in parse(_text(path), file=str(path)).entries]
    nets = sum(name in _NET_FIELDS for name in names)
    return sum(name in _SOLVER_FIELDS for name in names) > nets


def _held(node: Node, path: Path) -> tuple[Node, Node]:
    """The nets of a solver: for training and for tests."""
    tests = node.all("test_net_param")
    for field in ("train_net_param", "net_param"):
        if field in node:
            train = node.message(field)
            both = node.get("net_param") or train
            return train, tests[0] if tests else both
    train_file, test_file = nets_of_solver(path)
    train = _message(train_file, "NetParameter")
    if tests or test_file is None:
        return train, [*tests, train][0]
    return train, _message(test_file, "NetParameter")


def _file(node: Node, field: str, solver: Path) -> Path:
    """The net that a solver names: from the working folder as in Caffe, or near the solver."""
    name: str | None = node.get(field)
    if not name:
        what, expected = "the solver names no net", "net: with the path of a prototxt file"
        remedy = "add net:, or pass the net with --net and the solver with --solver"
        raise node.error(what, field, expected, "none", remedy)
    written = expanded(name)
    tried = [written, solver.parent / written, solver.parent / written.name]
    for candidate in tried:
        if os.path.isfile(candidate):  # false for a path that cannot be looked at, too
            return candidate.resolve()
    paths = list(dict.fromkeys(map(str, tried)))
    expected = f"a file at {' or '.join(paths)}"
    nothing = "nothing there" if len(paths) == 1 else "none of them"
    remedy = "correct the path, or pass the net with --net and the solver with --solver"
    raise node.error(f"the net {name!r} is not there", field, expected, nothing, remedy)


def _message(path: str | os.PathLike[str], type: str) -> Node:
    return read(_text(path), type, file=str(path))


def _in_state(net: Node, phase: str, *given: Node) -> tuple[Node, NetState]:
    if not any(field in net for field in ("layer", "layers", "input")):
        expected, fields = "layer { ... }, once or more", ", ".join(net.fields) or "an empty text"
        remedy = "write its layers, or check the path"
        raise net.error("the net has no layers", "layer", expected, fields, remedy)
    state = NetState(phase).merged(net.message("state"))
    for node in given:
        state = state.merged(node)
    return net, state


def _text(path: str | os.PathLike[str]) -> str:
    source = Path(path)
    data = read_bytes(source, "a prototxt file")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        what, expected = "the file is not UTF-8 text", "a definition in text form"
        byte = f"the byte 0x{data[error.start]:02x} at offset {error.start}"
        remedy = "name a prototxt file, and give binary files as weights"
        where = f"{source}:{data.count(bytes([10]), 0, error.start) + 1}"
        raise FormatError(what, expected, byte, remedy, where=where) from None
