"""The SVG picture of a graph, and `purine show` with pictures."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from purine.analysis.infer import check
from purine.graph import Builder, to_yaml
from purine.viewer.arrange import arrange, opened
from purine.viewer.graph_document import graph_document
from purine.viewer.graph_edges import edges_of
from purine.viewer.graph_svg import to_svg
from tests.command import call
from tests.viewer.graphs import document_of
from tests.viewer.traces import HOSTILE

SVG = "{http://www.w3.org/2000/svg}"


def drawn(text: str) -> dict[int, ET.Element]:
    """The boxes of a picture by node."""
    root = ET.fromstring(text.encode("utf-8"))
    boxes = [part for part in root.iter(f"{SVG}g") if "data-node" in part.attrib]
    return {int(box.attrib["data-node"]): box for box in boxes}


@pytest.mark.parametrize("devices", ["", "cpu:0-1"])
@pytest.mark.parametrize("net", ["lenet", "googlenet"])
def test_the_picture_has_a_box_for_all_that_the_fold_shows(net: str, devices: str) -> None:
    document = document_of(net, devices)
    boxes = drawn(to_svg(document, depth=1))
    shown = [item for row in document["nodes"][0]["rows"] for cell in row for item in cell]
    assert sorted(boxes) == sorted(item for item in shown if item > 0)
    titles = {box.find(f"{SVG}title").text for box in boxes.values()}  # type: ignore[union-attr]
    assert {"data", "conv1", "pool1", "loss"} <= titles


def test_open_to_the_bottom_every_op_is_drawn_once() -> None:
    document = document_of("lenet", "cpu:0-7")
    boxes = drawn(to_svg(document, depth=99))
    ops = [at for at, node in enumerate(document["nodes"]) if node["type"] == "op"]
    assert set(ops) <= set(boxes)


def test_an_edge_is_drawn_for_each_blob_that_passes_between_boxes() -> None:
    document = document_of("lenet")
    picture = arrange(document, opened(document, 99))
    nodes = document["nodes"]
    ends = {
        (nodes[edge.source]["label"], nodes[edge.target]["label"])
        for edge in edges_of(document, picture)
    }
    assert {("conv1", "pool1"), ("pool1", "conv2"), ("weight", "conv1"), ("data", "loss")} <= ends


def test_the_legend_names_roles_and_devices() -> None:
    root = ET.fromstring(to_svg(document_of("lenet", "cpu:0-7")).encode())
    texts = {text.text for text in root.iter(f"{SVG}text")}
    roles = {"forward", "backward", "update", "communication", "data"}
    assert roles | {"cpu:0", "cpu:7", "Forward", "Backward", "Update"} <= texts
    assert root.attrib["role"] == "img"
    assert root.find(f"{SVG}title") is not None
    described = root.find(f"{SVG}desc")
    assert described is not None
    assert "439 ops" in str(described.text)


def test_hostile_names_leave_the_picture_well_formed() -> None:
    builder = Builder()
    source = builder.blob("x", (2,))
    for name in HOSTILE:
        source = builder.op(name, "Relu", [source], [builder.blob(f"of {name}", (2,))]).outputs[0]
    text = to_svg(graph_document(builder.graph(), title=HOSTILE[0]))
    root = ET.fromstring(text.encode("utf-8"))
    assert not [part for part in root.iter() if part.tag.endswith("script")]
    assert len(text) < 100_000


def test_show_writes_pictures(tmp_path: Path) -> None:
    svg, html = tmp_path / "net.svg", tmp_path / "net.html"
    words = ("show", "--net", "lenet", "--step", "--devices", "cpu:0-1")
    assert call(*words, "--format", "svg", "-o", svg).code == 0
    assert drawn(svg.read_text())
    assert ">Clock<" not in svg.read_text()
    assert ">Clock<" in call(*words, "--format", "svg", "--clock").out
    assert call(*words, "--format", "html", "--out", html).code == 0
    assert "mountGraph" in html.read_text()
    assert "https:" not in html.read_text()
    assert set(re.findall('http://[^"]*', html.read_text())) == {"http://www.w3.org/2000/svg"}


def test_the_clock_is_only_left_out_of_pictures() -> None:
    refused = call("show", "--net", "lenet", "--clock")
    assert refused.code == 2
    assert "--clock is given with --format table" in refused.err


def test_a_graph_of_a_file_is_drawn(tmp_path: Path) -> None:
    from purine.zoo import mlp

    file = tmp_path / "net.yaml"
    file.write_text(to_yaml(check(mlp(batch=2))))
    assert "net.yaml" in call("show", file, "--format", "svg").out
