"""Errors take their place in a graph from its nodes, and helpers build the mistakes that repeat."""

from pathlib import Path

from purine.errors import DataError, GraphError, given_twice, reason
from purine.files import unreadable
from purine.graph import Blob, Location, Op
from purine.nearest import unknown_name

CONV = Op("conv1", "Conv", ("x",), ("y",), location=Location(device="cpu:1"), where="net.yaml:3")
BLOB = Blob("y", (2,), where="net.yaml:7")


def test_an_op_gives_its_name_line_and_location() -> None:
    error = GraphError("wrong", op=CONV, blob="y")
    assert (error.op, error.blob) == ("conv1", "y")
    assert (error.where, error.location) == ("net.yaml:3", "host 127.0.0.1, cpu:1")
    assert str(error) == "net.yaml:3: wrong"


def test_arguments_come_before_the_op_and_the_op_before_the_blob() -> None:
    error = GraphError("wrong", op=CONV, blob=BLOB, where=Path("other.yaml"))
    assert (error.where, error.location) == ("other.yaml", "host 127.0.0.1, cpu:1")
    assert GraphError("wrong", op="conv1", blob=BLOB).where == "net.yaml:7"


def test_helpers_return_the_class_that_is_asked_for() -> None:
    assert isinstance(given_twice(DataError, "lr"), DataError)
    assert unknown_name(GraphError, "net", "vgg", ["nin"]).remedy == "use one of these"
    assert unknown_name(GraphError, "net", "vgg", []).expected == "one of none"
    error = unreadable(DataError, "a.npz", OSError(5, "Input/output error", "a.npz"), expected="x")
    assert (error.where, error.found) == ("a.npz", "Input/output error")
    assert reason(ValueError("embedded null byte")) == "embedded null byte"
