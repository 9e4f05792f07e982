"""The page in a browser: every kind of it opens, its views are linked, nothing harms it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from purine.trace.events import Event
from purine.trace.trace import Trace
from purine.viewer.document import document, of_trace
from purine.viewer.page import page
from tests.command import call
from tests.viewer.conftest import Opens
from tests.viewer.traces import HOSTILE, hostile_trace, synthetic

pytestmark = pytest.mark.slow

TIMELINE = "document.querySelector('canvas.timeline').timeline"


def shown_tabs(opened: Any) -> list[str]:
    return opened.eval_on_selector_all("[role=tab]", "tabs => tabs.map(tab => tab.textContent)")


def place_of(opened: Any, event: int) -> tuple[float, float]:
    """Where an event is on the screen."""
    x, y = opened.evaluate(
        f"""(event) => {{
            const t = {TIMELINE}, box = t.canvas.getBoundingClientRect(), e = t.events;
            const middle = (e.start[event] + e.end[event]) / 2;
            const {{from, to, top}} = t.view, {{gutter, width}} = t.box;
            const x = gutter + (middle - from) / (to - from) * (width - gutter);
            return [box.left + x, box.top + 28 + (e.rowOf(event) + 0.5) * 22 - top];
        }}""",
        event,
    )
    return x, y


def eventually(opened: Any, expression: str) -> None:
    """Wait until it is true. The page's own rules forbid what `wait_for_function` would do."""
    asked = (opened.evaluate(expression) or opened.wait_for_timeout(50) for _ in range(200))
    assert any(asked), expression


def test_a_run_has_five_views_and_each_opens(run_page: Path, opens: Opens) -> None:
    with opens(run_page) as opened:
        assert shown_tabs(opened) == ["Overview", "Graph", "Timeline", "Memory", "Traffic"]
        assert "lenet" in opened.inner_text("#view-overview")
        for key in ("graph", "timeline", "memory", "traffic"):
            opened.click(f"#tab-{key}")
            opened.wait_for_selector(f"#view-{key}[data-ready]")
            assert opened.is_visible(f"#view-{key}")
            assert not opened.is_visible("#view-overview")
        assert opened.locator("#view-memory figure").count() == 4
        assert opened.locator("#view-traffic td.heat").count() == 2


def test_the_page_has_the_events_of_the_trace(run: Path, run_page: Path, opens: Opens) -> None:
    trace = Trace.load(run / "trace.json")
    times: dict[str, int] = {}
    for event in trace.events:
        times[event.kind] = times.get(event.kind, 0) + event.end - event.start
    with opens(run_page, "timeline") as opened:
        rows = f"{TIMELINE}.events.rows.map((_, at) => at)"
        sums = opened.evaluate(f"{TIMELINE}.events.sums(0, Infinity, {rows})")
    assert {kind: time for kind, time, _ in sums} == pytest.approx(times)


def test_a_click_on_an_event_marks_its_op_in_the_graph_and_back(
    run_page: Path, opens: Opens
) -> None:
    with opens(run_page, "timeline") as opened:
        find = "t.eventsOf[t.names.indexOf('replica1/conv2')][3]"
        event = opened.evaluate(f"(() => {{ const t = {TIMELINE}.events; return {find}; }})()")
        opened.evaluate(f"{TIMELINE}.reveal({event})")
        opened.mouse.click(*place_of(opened, event))
        assert "replica1/conv2" in opened.inner_text(".selection")
        assert "convolution" in opened.inner_text(".details")
        opened.click(".selection >> text=show in graph")
        opened.wait_for_selector("#view-graph .pg-marked")
        assert "conv2" in opened.inner_text("#view-graph .pg-details")
        opened.fill("#view-graph [type=search]", "relu1")
        opened.press("#view-graph [type=search]", "Enter")
        assert "relu1" in opened.inner_text(".selection")
        opened.click(".selection >> text=show in timeline")
        marked = opened.evaluate(
            f"{TIMELINE}.events.names[{TIMELINE}.events.op[{TIMELINE}.shown.event]]"
        )
        assert "relu1" in marked
        opened.click(".selection >> text=clear")
        assert not opened.is_visible(".selection")


def test_the_timeline_zooms_pans_and_sums(run_page: Path, opens: Opens) -> None:
    with opens(run_page, "timeline") as opened:
        view = f"(({{from, to}}) => [from, to])({TIMELINE}.view)"
        first = opened.evaluate(view)
        box = opened.locator("canvas.timeline").bounding_box()
        x, y = box["x"] + 700, box["y"] + 60
        under = opened.evaluate(f"{TIMELINE}.timeAt(700)")
        opened.mouse.move(x, y)
        wheel = f"{{deltaY: -400, clientX: {x}, clientY: {y}, cancelable: true}}"
        opened.evaluate(f"{TIMELINE}.canvas.dispatchEvent(new WheelEvent('wheel', {wheel}))")
        assert opened.evaluate(view)[1] < 0.9 * first[1]
        assert opened.evaluate(f"{TIMELINE}.timeAt(700)") == pytest.approx(under, rel=0.01)
        zoomed = opened.evaluate(view)
        opened.mouse.down()
        opened.mouse.move(x - 100, y, steps=3)
        opened.mouse.up()
        assert opened.evaluate(view)[0] > zoomed[0]
        opened.focus("canvas.timeline")
        opened.keyboard.press("ArrowLeft")
        opened.keyboard.press("0")
        assert opened.evaluate(view) == pytest.approx(first)
        opened.keyboard.down("Shift")
        opened.mouse.down()
        opened.mouse.move(x + 200, y, steps=3)
        opened.mouse.up()
        opened.keyboard.up("Shift")
        assert "Selected" in opened.inner_text(".details caption")
        opened.keyboard.press("Escape")
        opened.keyboard.press("n")
        opened.keyboard.press("n")
        assert opened.is_visible(".selection")


def test_two_fingers_zoom(run_page: Path, opens: Opens) -> None:
    with opens(run_page, "timeline", has_touch=True) as opened:
        before = opened.evaluate(f"{TIMELINE}.view.to - {TIMELINE}.view.from")
        opened.evaluate(
            """() => {
                const canvas = document.querySelector("canvas.timeline");
                const box = canvas.getBoundingClientRect();
                canvas.setPointerCapture = () => {};
                const at = {pointerType: "touch", clientY: box.top + 50};
                const send = (type, pointerId, x) => canvas.dispatchEvent(
                    new PointerEvent(type, {...at, pointerId, clientX: box.left + x}));
                send("pointerdown", 1, 500); send("pointerdown", 2, 600);
                send("pointermove", 1, 400); send("pointermove", 2, 700);
                send("pointerup", 1, 400); send("pointerup", 2, 700);
            }"""
        )
        after = opened.evaluate(f"{TIMELINE}.view.to - {TIMELINE}.view.from")
        assert after == pytest.approx(before / 3, rel=0.05)


def test_two_runs_are_compared(run: Path, tmp_path: Path, opens: Opens) -> None:
    words = ["train", "--net", "lenet", "--data", "fashion-mini", "--batch", "8", "--iters", "8"]
    other = tmp_path / "other"
    assert call(*words, "--lr", "0.03", "--log-every", "1", "--out", other).code == 0
    file = tmp_path / "both.html"
    assert call("view", run, other, "--out", file, "--no-open").code == 0
    with opens(file) as opened:
        table = opened.inner_text("#view-overview table")
        assert "0.01" in table
        assert "0.03" in table
        assert "fashion-mini" not in table  # what is the same is not listed
        loss = opened.locator("figure:has(figcaption:text-is('Loss')) path.line")
        assert loss.count() >= 2
        opened.click("#tab-graph")
        opened.wait_for_selector("#view-graph[data-ready]")
        assert opened.locator("#view-graph .part").count() == 2  # their steps differ


def test_nets_traces_and_predictions_have_pages(run: Path, tmp_path: Path, opens: Opens) -> None:
    pages = {
        "net": (["view", run / "net.yaml"], ["Overview", "Graph"]),
        "trace": (["view", run / "trace.json"], ["Overview", "Timeline", "Traffic"]),
        "predicted": (
            ["view", "--predict", run / "config.yaml"],
            ["Overview", "Graph", "Timeline", "Memory", "Traffic"],
        ),
    }
    for name, (words, tabs) in pages.items():
        file = tmp_path / f"{name}.html"
        called = call(*words, "--out", file, "--no-open")
        assert called.code == 0, called.err
        with opens(file) as opened:
            assert shown_tabs(opened) == tabs
            if "Timeline" in tabs:
                opened.click("#tab-timeline")
                opened.wait_for_selector("#view-timeline[data-ready]")
                assert opened.evaluate(f"{TIMELINE}.events.count") > 300


def test_a_page_is_dark_where_the_reader_is(run_page: Path, opens: Opens) -> None:
    def ground(scheme: str) -> tuple[str, int]:
        with opens(run_page, "timeline", color_scheme=scheme) as opened:
            colour = opened.evaluate("getComputedStyle(document.body).backgroundColor")
            pixel = opened.evaluate(
                "[...document.querySelector('canvas.timeline').getContext('2d')"
                ".getImageData(3, 60, 1, 1).data.slice(0, 3)].reduce((a, b) => a + b)"
            )
            return colour, pixel

    assert ground("light") == ("rgb(255, 255, 255)", 765)
    colour, pixel = ground("dark")
    assert colour == "rgb(20, 23, 27)"
    assert pixel < 150


def test_a_narrow_screen_shows_all_without_scrolling_sideways(run_page: Path, opens: Opens) -> None:
    size = {"width": 360, "height": 640}
    with opens(run_page, viewport=size, has_touch=True, is_mobile=True) as opened:
        for key in ("overview", "graph", "timeline", "memory", "traffic"):
            opened.evaluate(f"location.hash = '{key}'")
            opened.wait_for_selector(f"#view-{key}[data-ready]")
            assert opened.evaluate("document.documentElement.scrollWidth") <= 361, key


def test_the_page_works_with_the_keyboard_and_prints(run_page: Path, opens: Opens) -> None:
    with opens(run_page) as opened:
        opened.focus("#tab-overview")
        opened.keyboard.press("ArrowRight")
        assert opened.evaluate("document.activeElement.id") == "tab-graph"
        assert opened.get_attribute("#tab-graph", "aria-selected") == "true"
        opened.evaluate("dispatchEvent(new Event('beforeprint'))")
        opened.wait_for_selector("#view-traffic[data-ready]", state="attached")
        opened.emulate_media(media="print")
        assert opened.is_visible("#view-overview")
        assert opened.is_visible("#view-memory")
        for picture in opened.locator("figure svg").all():
            assert len(picture.get_attribute("aria-label")) > 20


def test_hostile_names_do_no_harm(tmp_path: Path, opens: Opens) -> None:
    trace = tmp_path / "trace.json"
    hostile_trace().save(trace)
    file = tmp_path / "page.html"
    file.write_text(page(document([of_trace(trace) | {"name": HOSTILE[0]}])))
    with opens(file, "timeline") as opened:
        for event in range(len(HOSTILE)):
            opened.evaluate(f"{TIMELINE}.choose({event})")
            assert len(opened.inner_text(".details h3")) < 400
            opened.evaluate(f"{TIMELINE}.reveal({event}); {TIMELINE}.draw()")
        names = opened.evaluate(f"{TIMELINE}.events.names.map(name => name.slice(0, 60))")
        assert sorted(names) == sorted(name[:60] for name in HOSTILE)
        for key in ("overview", "traffic"):
            opened.click(f"#tab-{key}")
            opened.wait_for_selector(f"#view-{key}[data-ready]")
        assert opened.evaluate("window.hurt") is None
        assert opened.locator("script").count() == 1
        assert opened.locator("img").count() == 0
        assert opened.title().startswith("</script>")


def test_a_script_in_the_document_would_not_run(tmp_path: Path, browser: Any) -> None:
    """The policy holds even if a name got out of the document."""
    text = page(document([of_trace_of(synthetic(100), tmp_path)]))
    file = tmp_path / "page.html"
    file.write_text(
        text.replace('<div id="page">', "<script>window.hurt = 1</script><div id=page>")
    )
    opened = browser.new_page()
    opened.goto(file.as_uri())
    opened.wait_for_selector("#view-overview[data-ready]")
    assert opened.evaluate("window.hurt") is None
    opened.close()


def of_trace_of(trace: Trace, folder: Path) -> Any:
    trace.save(folder / "trace.json")
    return of_trace(folder / "trace.json")


def test_many_events_open_and_pan(tmp_path: Path, opens: Opens) -> None:
    part = of_trace_of(synthetic(20_000), tmp_path)
    content: Any = json.loads(json.dumps(part))
    assert content["timeline"]["count"] >= 20_000
    file = tmp_path / "page.html"
    file.write_text(page(document([part])))
    with opens(file, "timeline") as opened:
        drawn = opened.evaluate(
            f"""() => {{
                const t = {TIMELINE}, fill = t.context.fillRect;
                let count = 0;
                t.context.fillRect = function (...box) {{ count++; fill.apply(this, box); }};
                t.zoom(0.5);
                t.draw();
                return count;
            }}"""
        )
        rows = opened.evaluate(f"{TIMELINE}.events.rows.length")
        assert 500 < drawn < 1280 * rows  # a rectangle a pixel and row, however many events


def page_of(trace: Trace, folder: Path) -> Path:
    """The page of a trace."""
    file = folder / "page.html"
    file.write_text(page(document([of_trace_of(trace, folder)])))
    return file


def drawn_width(opened: Any, height: int) -> float:
    """The widths of all rectangles of a height that the timeline draws, in all."""
    width: float = opened.evaluate(
        f"""(height) => {{
            const t = {TIMELINE}, fill = t.context.fillRect;
            let sum = 0;
            t.context.fillRect = function (x, y, w, h) {{ if (h === height) sum += w; }};
            t.draw();
            t.context.fillRect = fill;
            return sum;
        }}""",
        height,
    )
    return width


def test_what_is_long_is_drawn_behind_what_is_short(tmp_path: Path, opens: Opens) -> None:
    """A pixel may begin with a short event or wait, and end in one of many pixels."""
    events, clock = [], 0
    for iteration in range(20):
        for name, length, gap in (
            ("short", 1_000, 0),
            ("long", 10**6, 1_000),
            ("next", 1_000, 10**6),
        ):
            place = "host h, cpu:0"
            events.append(Event(name, name, iteration, place, "compute", clock, clock + length))
            clock += length + gap
    with opens(page_of(Trace(tuple(events), ()), tmp_path), "timeline") as opened:
        scale = opened.evaluate(
            "(t => (t.box.width - t.box.gutter) / t.events.span)(" + TIMELINE + ")"
        )
        assert drawn_width(opened, 16) == pytest.approx(20 * 10**6 * scale, rel=0.15)
        counted = 20 - opened.evaluate(f"{TIMELINE}.events.warmUp")
        assert drawn_width(opened, 6) == pytest.approx(counted * 10**6 * scale, rel=0.15)


def test_an_iteration_begins_where_its_data_is_computed_with(tmp_path: Path, opens: Opens) -> None:
    events = []
    for turn in range(4):
        begin, place = turn * 1_000, "host h, cpu:0"
        events += [
            Event("data", "Data", turn, place, "io", turn * 10, turn * 10 + 5),  # ahead of time
            Event(
                "mask",
                "aten.rand",
                turn,
                place,
                "compute",
                max(0, begin - 150),
                begin + 10 if turn == 0 else begin - 140,
            ),
            Event("conv", "aten.convolution", turn, place, "compute", begin + 50, begin + 800),
        ]
    trace = Trace(tuple(events), (("data", "conv", 0), ("mask", "conv", 0)))
    with opens(page_of(trace, tmp_path), "timeline") as opened:
        begins = opened.evaluate(f"{TIMELINE}.events.iterations")
    assert begins == [[turn, turn * 1_000 + 50] for turn in range(4)]


def test_what_is_visible_is_summed_up_without_a_mouse(run_page: Path, opens: Opens) -> None:
    with opens(run_page, "timeline") as opened:
        opened.click("text=sum")
        assert "convolution_backward" in opened.inner_text(".details table")
        assert "waits: " in opened.inner_text(".details table")
        opened.focus("canvas.timeline")
        opened.keyboard.press("Escape")
        assert opened.locator(".details table").count() == 0
        opened.keyboard.press("+")
        opened.keyboard.press("s")
        view = opened.evaluate(f"[{TIMELINE}.view.from, {TIMELINE}.view.to]")
        assert opened.evaluate(f"{TIMELINE}.shown.range") == view
        sums = "(t => t.events.waited(0, Infinity).reduce((sum, [, time]) => sum + time, 0))"
        every = f"{TIMELINE}.events.waits.duration.reduce((sum, time) => sum + time, 0)"
        assert opened.evaluate(f"{sums}({TIMELINE})") == pytest.approx(opened.evaluate(every))


def test_letters_of_charts_keep_their_size(run_page: Path, opens: Opens) -> None:
    for width in (390, 1500):
        with opens(run_page, "memory", viewport={"width": width, "height": 700}) as opened:
            charts = "[...document.querySelectorAll('#view-memory figure svg')]"
            eventually(opened, f"{charts}.every(c => Math.abs(c.getScreenCTM().a - 1) < 0.01)")


def test_one_test_in_a_run_is_a_dot(run_page: Path, opens: Opens) -> None:
    with opens(run_page) as opened:
        assert opened.locator("figure:has(figcaption:text-is('Loss')) path.dots").count() == 1


def test_a_dark_page_prints_on_white(run_page: Path, opens: Opens) -> None:
    with opens(run_page, "timeline", color_scheme="dark") as opened:
        opened.emulate_media(media="print")
        ground = "getComputedStyle(document.body).backgroundColor"
        pixel = "(c => [...c.getContext('2d').getImageData(3, 60, 1, 1).data.slice(0, 3)])"
        canvas = "document.querySelector('canvas.timeline')"
        eventually(opened, f"{ground} === 'rgb(255, 255, 255)'")
        eventually(opened, f"{pixel}({canvas}).every(value => value === 255)")
        assert not opened.is_visible(".bar-of-tools")


def test_the_whole_graph_is_on_paper(run_page: Path, opens: Opens) -> None:
    with opens(run_page, "graph", viewport={"width": 700, "height": 900}) as opened:
        inside = """(() => {
            const canvas = document.querySelector('.pg-canvas').getBoundingClientRect();
            return [...document.querySelectorAll('.pg-box')].every(b => {
                const box = b.getBoundingClientRect();
                return box.left >= canvas.left && box.right <= canvas.right
                    && box.top >= canvas.top && box.bottom <= canvas.bottom;
            });
        })()"""
        before = opened.get_attribute(".pg-canvas > g", "transform")
        assert not opened.evaluate(inside)
        opened.emulate_media(media="print")
        opened.wait_for_selector(".pg-canvas[viewBox]")
        assert opened.evaluate(inside)
        assert not opened.is_visible(".details")
        opened.emulate_media(media="screen")
        opened.wait_for_selector(".pg-canvas:not([viewBox])")
        assert opened.get_attribute(".pg-canvas > g", "transform") == before


def test_equal_steps_of_two_runs_are_one_graph(run: Path, tmp_path: Path, opens: Opens) -> None:
    other = shutil.copytree(run, tmp_path / "other")
    file = tmp_path / "both.html"
    assert call("view", run, other, "--out", file, "--no-open").code == 0
    with opens(file, "graph") as opened:
        assert opened.locator("#view-graph .part").count() == 1


def test_many_devices_have_tables_of_memory_and_strips_of_traffic(
    tmp_path: Path, opens: Opens
) -> None:
    job = tmp_path / "job.yaml"
    job.write_text("net: lenet\nbatch: 16\niters: 4\ndevices: cpu:0-3\nthreads: 1\n")
    file = tmp_path / "page.html"
    called = call("view", "--predict", job, "--out", file, "--no-open")
    assert called.code == 0, called.err
    with opens(file, "traffic") as opened:
        strips = opened.locator("#view-traffic .strips svg")
        assert strips.count() == 4
        assert "cpu:3 receives" in strips.nth(3).get_attribute("aria-label")
        opened.click("#tab-memory")
        opened.wait_for_selector("#view-memory[data-ready]")
        table = opened.inner_text("#view-memory table")
        assert "predicted peak" in table
        assert "cpu:3" in table
        opened.click("#tab-overview")
        assert "samples a second" in opened.inner_text("#view-overview .facts")


def test_the_pointer_is_told_what_is_below_it(run_page: Path, opens: Opens) -> None:
    with opens(run_page, "timeline") as opened:
        find = "e.eventsOf[e.names.indexOf('replica1/conv2')][3]"
        event = opened.evaluate(f"(() => {{ const e = {TIMELINE}.events; return {find}; }})()")
        opened.evaluate(f"{TIMELINE}.reveal({event})")
        assert not opened.is_visible(".tip")
        opened.mouse.move(*place_of(opened, event))
        told = opened.inner_text(".tip")
        assert "replica1/conv2" in told
        assert "aten.convolution" in told
        assert "iteration 3" in told
        wait = f"""(() => {{
            const t = {TIMELINE}, w = t.events.waits, box = t.canvas.getBoundingClientRect();
            const at = w.duration.indexOf(Math.max(...w.duration));
            t.look(w.start[at] - w.duration[at], w.start[at] + 2 * w.duration[at], 0);
            const middle = w.start[at] + w.duration[at] / 2, {{from, to}} = t.view;
            const x = t.box.gutter + (middle - from) / (to - from) * (t.box.width - t.box.gutter);
            const row = t.events.waitRows[w.device[at]];
            return [box.left + x, box.top + 28 + (row + 0.5) * 22, w.sorts[w.sort[at]]];
        }})()"""
        x, y, sort = opened.evaluate(wait)
        opened.mouse.move(x, y)
        told = opened.inner_text(".tip")
        assert told.startswith("waits ")
        assert f": {sort}" in told
        opened.mouse.move(x, y + 600)
        assert not opened.is_visible(".tip")


def test_arrows_of_short_transfers_are_drawn(run_page: Path, opens: Opens) -> None:
    with opens(run_page, "timeline") as opened:
        opened.click("text=arrows of transfers")
        arrows = opened.evaluate(
            f"""(() => {{
                const t = {TIMELINE}, e = t.events;
                t.look(e.iterations[2][1], e.iterations[3][1], 0);
                const draw = t.context.bezierCurveTo;
                let count = 0;
                t.context.bezierCurveTo = () => count++;
                t.draw();
                t.context.bezierCurveTo = draw;
                return count;
            }})()"""
        )
        assert arrows > 4


def test_marking_a_node_moves_nothing_on_a_wide_screen(run_page: Path, opens: Opens) -> None:
    with opens(run_page, "timeline") as opened:
        before = opened.locator("canvas.timeline").bounding_box()
        opened.focus("canvas.timeline")
        opened.keyboard.press("n")
        assert opened.is_visible(".selection")
        assert opened.locator("canvas.timeline").bounding_box() == before


def test_causes_of_waits_are_explained(run_page: Path, opens: Opens) -> None:
    with opens(run_page) as opened:
        legend = opened.inner_text("#view-overview .legend >> nth=0")
    assert "compute: kernels run on the device" in legend
    assert "peers: it waits for the compute of other devices" in legend


def test_a_net_begins_with_its_graph_and_tells_what_its_kinds_cost(
    run: Path, tmp_path: Path, opens: Opens
) -> None:
    file = tmp_path / "net.html"
    assert call("view", run / "net.yaml", "--out", file, "--no-open").code == 0
    with opens(file, "graph") as opened:
        opened.goto(file.as_uri())
        opened.wait_for_selector("#view-graph[data-ready]")
        assert opened.is_visible("#view-graph")
        opened.click("#tab-overview")
        assert "431,080" in opened.inner_text("#view-overview .facts")
        first = opened.inner_text("#view-overview tbody tr >> nth=0").split("\t")
        assert first[:2] == ["Conv", "2"]
        assert first[2].endswith("MFLOP")


def test_long_names_of_lanes_are_shortened_not_squeezed(tmp_path: Path, opens: Opens) -> None:
    with opens(page_of(hostile_trace(), tmp_path), "timeline") as opened:
        squeezed = opened.evaluate(
            f"""(() => {{
                const t = {TIMELINE}, write = t.context.fillText;
                const found = [];
                t.context.fillText = function (text, x, y, most) {{
                    if (x < t.box.gutter) found.push(this.measureText(text).width / most);
                }};
                t.draw();
                t.context.fillText = write;
                return found;
            }})()"""
        )
        assert len(squeezed) >= 2 * len(HOSTILE)
        assert max(squeezed) < 1.2
