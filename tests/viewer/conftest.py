"""A browser for the tests of the page; they are skipped where there is none."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.command import call

NAMES = ("chromium", "chromium-browser", "google-chrome")


class Opens(Protocol):
    """Opens an address, or a file and the key of a view, and fails if the console has errors."""

    def __call__(self, what: Path | str, view: str = ..., **settings: Any) -> Any: ...


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip(f"there is no browser: none of {', '.join(NAMES)} is installed")
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def opens(browser: Any) -> Opens:
    @contextmanager
    def opened(what: Path | str, view: str = "overview", **settings: Any) -> Iterator[Any]:
        errors: list[str] = []
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 860}} | settings)
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda m: errors.append(m.text) if m.type == "error" else None)
        address = what if isinstance(what, str) else what.resolve().as_uri()
        page.goto(f"{address}#{view}")
        page.wait_for_selector(f"#view-{view}[data-ready]")
        yield page
        context.close()
        assert errors == []

    return opened


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run on two devices, with a trace of six iterations."""
    folder = tmp_path_factory.mktemp("page") / "run"
    words = ["train", "--net", "lenet", "--data", "fashion-mini", "--batch", "8", "--iters", "8"]
    words += ["--devices", "cpu:0-1", "--share-cores", "--trace", "--trace-iters", "6"]
    called = call(*words, "--log-every", "1", "--test-every", "8", "--out", folder)
    assert called.code == 0, called.err
    return folder


@pytest.fixture(scope="session")
def run_page(run: Path) -> Path:
    """The page of the run."""
    file = run.parent / "run.html"
    called = call("view", run, "--out", file, "--no-open")
    assert called.code == 0, called.err
    return file
