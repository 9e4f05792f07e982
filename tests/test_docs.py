"""The documents tell the truth: their graphs read, their errors are real, their files exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from purine.analysis.infer import problems
from purine.errors import GraphError
from purine.graph import Blob, Filler, State, from_yaml
from purine.registry.fillers import filler_problems

ROOT = Path(__file__).parent.parent
BLOCKS = re.findall(
    r"```yaml\n(.*?)```\n(?:(?!```).)*(?:```text\n(.*?)```)?",
    (ROOT / "docs" / "yaml.md").read_text(),
    re.DOTALL,
)


def told(text: str) -> str:
    """What `purine check net.yaml` says of the text."""
    try:
        found: list[GraphError] = problems(from_yaml(text, file="net.yaml"))
    except GraphError as error:
        found = [error]
    return "".join(f"error: {problem}\n" for problem in found)


@pytest.mark.parametrize(("graph", "errors"), BLOCKS)
def test_graphs_in_the_document_give_the_errors_it_shows(graph: str, errors: str) -> None:
    assert told(graph) == errors


def test_the_document_shows_good_graphs_and_bad_ones() -> None:
    assert sum(not errors for _, errors in BLOCKS) >= 4
    assert sum(bool(errors) for _, errors in BLOCKS) >= 4


def test_the_document_lists_all_fillers() -> None:
    text = (ROOT / "docs" / "yaml.md").read_text()
    table = text.partition("| filler |")[2].partition("\n\n")[0]
    first = "".join(row.split("|")[1] for row in table.splitlines()[2:])
    (wrong,) = filler_problems(State("w", "w", Filler("none")), Blob("w", (2,)))
    assert "one of " + ", ".join(sorted(re.findall(r"`(\w+)`", first))) == wrong.expected


@pytest.mark.parametrize("document", ["design.md", "yaml.md"])
def test_the_files_a_document_names_exist(document: str) -> None:
    text = (ROOT / "docs" / document).read_text()
    named = set(re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.py)`", text))
    missing = [
        path for path in named if not any((ROOT / top / path).exists() for top in ("", "purine"))
    ]
    assert missing == []
    linked = re.findall(r"\]\(([^)#:]+)\)", text)
    assert [path for path in linked if not (ROOT / "docs" / path).exists()] == []


def test_the_readme_trains_on_own_data(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (block,) = (block for block in blocks if "data=(x, y)" in block)
    exec(f"import torch\nimport purine as pu\n{block}", {})
    assert "distance" in capsys.readouterr().out
