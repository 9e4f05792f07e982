"""`purine view`: what it writes, and what it refuses."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from purine.viewer.bundle import bundled
from purine.viewer.page import page
from tests.command import call


def test_a_page_is_one_file_that_fetches_nothing(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    called = call("view", run, "-o", file, "--no-open")
    assert called.out.startswith(f"wrote {file}")
    text = file.read_text()
    assert "default-src 'none'" in text
    assert re.search(r"\s(src|href)=|@import|url\((?!#)", text) is None
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_a_run_without_its_data_is_shown_with_a_note(run: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(run, tmp_path / "run"))
    config = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(config.replace("fashion-mini", str(tmp_path / "gone.npz")))
    called = call("view", folder, "-o", tmp_path / "page.html", "--no-open")
    assert called.code == 0, called.err
    assert "only its net" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["nothing"], "this cannot be shown"),
        (["empty"], "there is no run in this folder"),
        (["a", "b", "c"], "only two can be compared"),
        (["config.yaml"], "config.yaml"),
    ],
)
def test_what_cannot_be_shown_is_refused(
    words: list[str], told: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(run / "config.yaml", tmp_path)
    (tmp_path / "empty").mkdir()
    called = call("view", *words, "--out", "page.html")
    assert called.code == 2
    assert told in called.err
    assert not (tmp_path / "page.html").exists()


def test_a_page_does_not_replace_what_it_shows(run: Path) -> None:
    called = call("view", run / "net.yaml", "--out", run / "net.yaml")
    assert called.code == 2
    assert "replace its own input" in called.err


def test_a_document_cannot_end_its_own_script() -> None:
    text = page({"title": "x", "parts": [{"name": "</script><!--"}], "live": None})
    assert "</script><!--" not in text
    assert text.count("</script>") == 2


def test_scripts_use_nothing_that_turns_text_into_markup() -> None:
    script = bundled("page")
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert word not in script
