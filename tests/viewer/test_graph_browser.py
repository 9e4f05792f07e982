"""The page of one graph in a browser: groups open, nodes are found and described, nothing harms."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from purine.graph import Builder
from purine.viewer.arrange import arrange
from purine.viewer.graph_document import graph_document
from purine.viewer.graph_edges import edges_of, path_of
from purine.viewer.graph_html import to_html
from tests.command import call
from tests.viewer.conftest import Opens
from tests.viewer.graphs import document_of
from tests.viewer.traces import HOSTILE

pytestmark = pytest.mark.slow
Shows = Callable[..., Any]


@pytest.fixture
def shows(browser: Any, tmp_path: Path) -> Shows:
    """Opens the page of a graph document, and fails if the console has errors."""

    @contextmanager
    def shown(document: Any, **settings: Any) -> Iterator[Any]:
        errors: list[str] = []
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 860}} | settings)
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda m: errors.append(m.text) if m.type == "error" else None)
        file = tmp_path / "graph.html"
        file.write_text(to_html(document), encoding="utf-8")
        page.goto(file.as_uri())
        page.wait_for_selector(".pg-canvas")
        yield page
        context.close()
        assert errors == []

    return shown


def node_of(document: Any, column: str, label: str) -> int:
    """The member of the root with a label."""
    nodes = enumerate(document["nodes"])
    wanted = (column, label)
    (found,) = [
        at
        for at, node in nodes
        if (node.get("column"), node.get("label")) == wanted and node.get("parent") == 0
    ]
    return found


def box(number: int) -> str:
    return f'[data-node="{number}"]'


def test_the_browser_places_boxes_and_edges_as_python_does(shows: Shows) -> None:
    document = document_of("googlenet", "cpu:0-1")
    picture = arrange(document, document["open"])
    with shows(document) as page:
        shape = "b.querySelector('.pg-shape:not(.pg-behind)').getAttribute('x')"
        script = f"boxes => boxes.map(b => [+b.dataset.node, +{shape}])"
        placed = dict(page.eval_on_selector_all("[data-node]", script))
        lines = page.eval_on_selector_all(".pg-edge", "all => all.map(e => e.getAttribute('d'))")
    assert placed.keys() == picture.boxes.keys()
    assert all(abs(placed[number] - b.x) < 0.01 for number, b in picture.boxes.items())
    assert len(lines) == len(edges_of(document, picture))
    paths = {path_of(document, picture, edge) for edge in edges_of(document, picture)}
    assert len(paths & set(lines)) > 0.9 * len(paths)  # but for how halves are rounded


def test_a_group_opens_and_closes(shows: Shows) -> None:
    document = document_of("googlenet", "cpu:0-1")
    group = node_of(document, "forward", "inception3a")
    with shows(document) as page:
        before = page.locator("[data-node]").count()
        page.click(box(group))
        assert page.get_attribute(box(group), "aria-expanded") == "true"
        inside = page.locator("[data-node]").count()
        assert inside == before + 5
        assert "group of" in page.inner_text(".pg-details")
        page.focus(box(group))
        page.keyboard.press("Enter")
        assert page.get_attribute(box(group), "aria-expanded") == "false"
        assert page.locator("[data-node]").count() == before
        page.click("text=Open all")
        assert page.locator("[data-node]").count() > 500
        page.click("text=Close all")
        assert page.locator("[data-node]").count() == before


def test_keys_work_after_a_click_on_a_group(shows: Shows) -> None:
    document = document_of("googlenet", "cpu:0-1")
    with shows(document) as page:
        page.click(box(node_of(document, "forward", "inception3a")))
        seen = page.get_attribute(".pg-canvas > g", "transform")
        page.keyboard.press("0")
        assert page.get_attribute(".pg-canvas > g", "transform") != seen
        page.keyboard.press("Escape")
        assert "How to read it" in page.inner_text(".pg-details")


def test_a_click_shows_what_an_op_is_and_leads_to_its_neighbours(shows: Shows) -> None:
    document = document_of("lenet", "cpu:0-1")
    with shows(document) as page:
        page.click(box(node_of(document, "forward", "pool2")))
        told = page.inner_text(".pg-details")
        for text in ("aten.max_pool2d_with_indices", "forward", "cpu:0, cpu:1", "32x50x4x4"):
            assert text in told
        assert "replica1/pool2" in told
        assert page.locator(".pg-edge-marked").count() >= 2
        page.click(".pg-details button:has-text('replica*/conv2')")
        assert page.inner_text(".pg-details h3") == "replica*/conv2"


def test_search_finds_names_and_kinds(shows: Shows) -> None:
    with shows(document_of("lenet", "cpu:0-1")) as page:
        page.fill(".pg-search", "convolution_backward")
        assert page.inner_text(".pg-count") == "3 found"
        page.press(".pg-search", "Enter")
        assert page.inner_text(".pg-count") == "1 of 3"
        assert "convolution_backward" in page.inner_text(".pg-details h3")
        assert page.locator(".pg-dim").count() > 10
        page.fill(".pg-search", "replica1/relu1")
        page.press(".pg-search", "Enter")
        assert page.inner_text(".pg-details h3") == "replica*/relu1"
        page.fill(".pg-search", "")
        assert page.locator(".pg-dim").count() == 0


def test_search_goes_to_the_group_of_a_name_in_the_forward(shows: Shows) -> None:
    document = document_of("googlenet", "cpu:0-1")
    with shows(document) as page:
        page.fill(".pg-search", "Inception3a")
        page.press(".pg-search", "Enter")
        assert "group of" in page.inner_text(".pg-details")
        group = node_of(document, "forward", "inception3a")
        assert "pg-marked" in page.get_attribute(box(group), "class")


def test_a_large_graph_starts_so_that_it_can_be_read(shows: Shows) -> None:
    with shows(document_of("googlenet", "cpu:0-1")) as page:
        letter = "document.querySelector('.pg-first').getScreenCTM().a"
        assert page.evaluate(letter) >= 0.8


def test_a_wide_graph_starts_with_nothing_blank_at_its_left(shows: Shows) -> None:
    with shows(
        document_of("googlenet", "cpu:0-1"), viewport={"width": 1100, "height": 800}
    ) as page:
        left = page.evaluate(
            """() => {
                const all = [...document.querySelectorAll('.pg-box')];
                const canvas = document.querySelector('.pg-canvas').getBoundingClientRect();
                return Math.min(...all.map(b => b.getBoundingClientRect().left)) - canvas.left;
            }"""
        )
    assert left < 40


def test_the_panel_tells_how_to_read_the_graph_until_a_box_is_chosen(shows: Shows) -> None:
    document = document_of("lenet", "cpu:0-1")
    with shows(document) as page:
        guide = page.inner_text(".pg-details")
        for text in (
            f"{document['ops']} ops",
            "group of ops",
            "\u00d72",
            "tag below a box",
            "stripes at the left",
        ):
            assert text in guide
        page.click(box(node_of(document, "forward", "pool2")))
        assert "How to read it" not in page.inner_text(".pg-details")
        page.keyboard.press("Escape")
        assert "How to read it" in page.inner_text(".pg-details")
    with shows(document_of("lenet")) as page:
        assert "stripes" not in page.inner_text(".pg-details")


def test_heat_colours_what_works_most(shows: Shows) -> None:
    document = document_of("lenet", "cpu:0-1")
    with shows(document) as page:
        page.select_option(".pg-heat", "work")
        part = "b => +b.querySelector('.pg-shape').style.fill.match(/ ([0-9.]+)%/)[1]"
        heats = {
            label: page.eval_on_selector(box(node_of(document, "forward", label)), part)
            for label in ("conv1", "conv2", "relu1")
        }
        assert "FLOP" in page.inner_text(".pg-bar")
    assert heats["conv2"] > heats["conv1"] > heats["relu1"]


def test_a_page_of_a_run_shows_its_times_as_heat(opens: Opens, run: Path, tmp_path: Path) -> None:
    file = tmp_path / "run.html"
    assert call("view", run, "--out", file, "--no-open").code == 0
    with opens(file, "timeline") as page:
        page.click("#tab-graph")
        page.wait_for_selector("#view-graph[data-ready]")
        page.select_option("#view-graph .pg-heat", "time")
        assert "hottest:" in page.inner_text("#view-graph .pg-bar")
        page.fill("#view-graph .pg-search", "conv2")
        page.press("#view-graph .pg-search", "Enter")
        assert "Time of an iteration" in page.inner_text("#view-graph .pg-details")


def test_keys_go_from_box_to_box_and_zoom(shows: Shows) -> None:
    with shows(document_of("lenet")) as page:
        page.focus(".pg-canvas")
        page.keyboard.press("ArrowDown")
        first = page.evaluate("document.activeElement.dataset.node")
        page.keyboard.press("ArrowDown")
        second = page.evaluate("document.activeElement.dataset.node")
        assert first is not None
        assert second not in (None, first)
        seen = page.get_attribute(".pg-canvas > g", "transform")
        page.keyboard.press("+")
        assert page.get_attribute(".pg-canvas > g", "transform") != seen


@pytest.mark.parametrize(
    "settings", [{"color_scheme": "dark"}, {"viewport": {"width": 360, "height": 640}}]
)
def test_dark_and_narrow_pages_show_the_graph(shows: Shows, settings: Any) -> None:
    document = document_of("lenet", "cpu:0-1")
    with shows(document, **settings) as page:
        page.click(box(node_of(document, "forward", "conv1")))
        assert page.inner_text(".pg-details h3")
        wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0


def test_hostile_names_do_no_harm(shows: Shows) -> None:
    builder = Builder()
    source = builder.blob("x", (2,))
    for name in HOSTILE:
        source = builder.op(name, "Relu", [source], [builder.blob(f"of {name}", (2,))]).outputs[0]
    with shows(graph_document(builder.graph(), title=HOSTILE[0])) as page:
        page.click("text=Open all")
        for number in range(page.locator(".pg-op").count()):
            page.locator(".pg-op").nth(number).dispatch_event("pointerdown")
            page.locator(".pg-op").nth(number).dispatch_event("pointerup")
        page.fill(".pg-search", "</script>")
        page.press(".pg-search", "Enter")
        assert "</script>" in page.inner_text(".pg-details h3")
        assert page.evaluate("window.hurt") is None
        assert page.locator("main img").count() == 0
