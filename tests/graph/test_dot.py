import shutil
import subprocess

import pytest

from purine.graph import NOTHING, Builder, Graph, Location, to_dot


def drawing() -> Graph:
    b = Builder()
    far = Location(device="cuda:0")
    b.blob("x", (2, 3))
    b.blob('w "odd\\N"', (3,))
    b.blob("w_next", (3,))
    b.blob("y", (2, 3))
    b.blob("y_far", (2, 3), location=far)
    b.op("mul", "Mul", ["x", 'w "odd\\N"'], ["y", NOTHING])
    b.op("update", "Update", ['w "odd\\N"'], ["w_next"])
    b.op("send", "Copy", ["y"], ["y_far"])
    b.op("log", "Print", ["y_far"], [], location=far)
    b.state('w "odd\\N"', "w_next")
    b.control.add(("mul", "update"))
    return b.graph()


def test_nodes_and_edges() -> None:
    lines = [line.strip() for line in to_dot(drawing()).splitlines()]
    near, far = "#cfe2f3", "#fce5cd"
    assert f'"blob:x" [shape=ellipse, label="x\\nfloat32 2x3", fillcolor="{near}"];' in lines
    assert f'"op:mul" [shape=box, label="mul\\nMul", fillcolor="{near}"];' in lines
    assert f'"op:log" [shape=box, label="log\\nPrint", fillcolor="{far}"];' in lines
    assert '"blob:x" -> "op:mul";' in lines
    assert '"op:mul" -> "blob:y";' in lines
    assert '"blob:w_next" -> "blob:w \\"odd\\\\N\\"" [style=dashed, constraint=false];' in lines
    assert '"op:mul" -> "op:update" [style=dotted];' in lines
    assert sum(" -> " in line for line in lines) == 10


def test_a_legend_only_where_colours_differ() -> None:
    assert "host 127.0.0.1, cuda:0" in to_dot(drawing())
    b = Builder()
    b.blob("x", (1,))
    assert "legend" not in to_dot(b.graph())


@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")
def test_graphviz_reads_it() -> None:
    result = subprocess.run(
        ["dot", "-Tplain"], input=to_dot(drawing()), capture_output=True, text=True, check=True
    )
    assert result.stderr == ""
    assert sum(line.startswith("edge ") for line in result.stdout.splitlines()) == 10
