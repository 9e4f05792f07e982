"""The documents tell the truth: their code runs, their errors are real, their files exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from purine.analysis.infer import problems
from purine.compile.rewrites import REWRITES
from purine.errors import GraphError
from purine.graph import Blob, Filler, State, from_yaml
from purine.lowering import LOWERING
from purine.machine.effects import EFFECTS
from purine.recipe import RECIPE
from purine.registry.fillers import filler_problems

ROOT = Path(__file__).parent.parent
DOCUMENTS = [
    str(path.relative_to(ROOT))
    for path in sorted(
        [
            ROOT / "README.md",
            ROOT / "benchmarks" / "results" / "README.md",
            *(ROOT / "docs").rglob("*.md"),
        ]
    )
]
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


TABLES = {
    "recipe.md": [stage.name for stage in RECIPE],
    "lowering.md": [item.name for item in LOWERING],
    "compile.md": [rewrite.name for rewrite in REWRITES],
    "machine.md": [effect.name for effect in EFFECTS],
}


@pytest.mark.parametrize("document", TABLES)
def test_a_table_lists_what_the_code_has_in_its_order(document: str) -> None:
    text = (ROOT / "docs" / "design" / document).read_text()
    rows = re.findall(r"^\| `([\w-]+)` \|", text, re.MULTILINE)
    assert rows == TABLES[document]


def blocks_of(document: str) -> list[tuple[int, str]]:
    """The Python blocks of a document, each with the line before its first."""
    text = (ROOT / document).read_text()
    found = re.finditer(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return [(text.count("\n", 0, block.start(1)), block.group(1)) for block in found]


@pytest.mark.parametrize("document", [name for name in DOCUMENTS if blocks_of(name)])
def test_python_blocks_run(document: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of a document run one after the other and share their names."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "document"}
    for line, block in blocks_of(document):
        exec(compile("\n" * line + block, ROOT / document, "exec"), names)


def test_the_readme_starts_with_python() -> None:
    (_, first), *_ = blocks_of("README.md")
    assert 10 <= len(first.splitlines()) <= 16


@pytest.mark.parametrize("document", ["README.md", "docs/design.md"])
def test_an_overview_is_short(document: str) -> None:
    assert len((ROOT / document).read_text().splitlines()) <= 200


def exists(path: str, folder: Path) -> bool:
    """Whether a document may name a path: from the root, the package, or its own folder."""
    return any((top / path).exists() for top in (ROOT, ROOT / "purine", folder))


@pytest.mark.parametrize("document", DOCUMENTS)
def test_the_files_a_document_names_exist(document: str) -> None:
    folder, text = (ROOT / document).parent, (ROOT / document).read_text()
    named = set(re.findall(r"`((?:[a-z_0-9]+/)+[a-z_0-9-]+\.(?:py|md|yaml|json))`", text))
    named |= set(re.findall(r"python ((?:benchmarks|scripts|examples|docs)/\w+\.py)", text))
    assert [path for path in sorted(named) if not exists(path, folder)] == []


def anchors(document: Path) -> set[str]:
    """The anchors of a document's headings, as GitHub makes them."""
    prose = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)$", prose, re.MULTILINE)
    words = (re.sub(r"[^\w\- ]", "", heading).strip().lower() for heading in headings)
    return {text.replace(" ", "-") for text in words}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document: str) -> None:
    path = ROOT / document
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        if "://" in link:
            continue
        file, _, anchor = link.partition("#")
        target = path.parent / file if file else path
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_every_package_has_a_page() -> None:
    """A package may be added, and none may be forgotten: `docs/design.md` links its page."""
    overview = (ROOT / "docs" / "design.md").read_text()
    layers = overview.partition("## Layers")[2].partition("\n## ")[0]
    packages = {path.parent.name for path in (ROOT / "purine").glob("*/__init__.py")}
    assert [name for name in sorted(packages) if f"`{name}/`" not in layers] == []
    pages = {path.name for path in (ROOT / "docs" / "design").glob("*.md")}
    assert pages <= set(re.findall(r"\(design/([\w-]+\.md)", overview))


def test_the_walk_is_short_and_its_files_exist() -> None:
    overview = (ROOT / "docs" / "design.md").read_text()
    walk = overview.partition("<!-- walk -->")[2].partition("<!-- /walk -->")[0]
    files = re.findall(r"^\| `purine/([\w/]+\.py)`", walk, re.MULTILINE)
    assert 10 <= len(files) <= 30
    assert [file for file in files if not (ROOT / "purine" / file).exists()] == []


def test_every_results_page_is_listed() -> None:
    """`benchmarks/results/README.md` links each page beside it."""
    folder = ROOT / "benchmarks" / "results"
    linked = set(re.findall(r"\]\(([\w.-]+)", (folder / "README.md").read_text()))
    assert {path.name for path in folder.iterdir()} - linked <= {"README.md"}
