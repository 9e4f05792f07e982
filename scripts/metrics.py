"""Prints figures about the code of one or several checkouts, side by side, as a table.

python scripts/metrics.py ../old .
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import io
import re
import tokenize
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef
NO_CODE = (
    tokenize.COMMENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
    tokenize.INDENT,
    tokenize.NEWLINE,
    tokenize.NL,
)
WINDOW = 6
"""Lines in a row that count as repeated where they stand twice."""


def sources(tree: Path) -> dict[str, str]:
    """The text of every module of the package, by its path."""
    return {
        str(path.relative_to(tree)): path.read_text()
        for path in sorted((tree / "purine").rglob("*.py"))
    }


def functions(code: Mapping[str, str]) -> Iterator[tuple[str, Function]]:
    for path, text in code.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, Function):
                yield path, node


def parameters(function: Function) -> int:
    arguments = function.args
    return len(arguments.posonlyargs) + len(arguments.args) + len(arguments.kwonlyargs)


def length(function: Function) -> int:
    return (function.end_lineno or function.lineno) - function.lineno + 1


def largest(code: Mapping[str, str], measure: Callable[[Function], int]) -> str:
    """The three functions for which a measure is largest."""
    ranked = sorted(functions(code), key=lambda item: -measure(item[1]))[:3]
    return ", ".join(f"{function.name} {measure(function)}" for _, function in ranked)


def matching(code: Mapping[str, str], pattern: str) -> int:
    """Lines that match, without those that import."""
    lines = (line for text in code.values() for line in text.splitlines())
    return sum(bool(re.search(pattern, line)) for line in lines if " import " not in line)


def deferred(code: Mapping[str, str], *, below: str) -> int:
    """Imports of our own modules inside functions, in paths that do not begin with `below`."""
    found: set[tuple[str, int]] = set()
    for path, function in functions(code):
        if not path.startswith(below) and path != "purine/__init__.py":
            found |= {
                (path, node.lineno)
                for node in ast.walk(function)
                if isinstance(node, ast.ImportFrom)
                and (node.module or "").startswith("purine")
                and "gpu_" not in ast.unparse(node)
                and "purine.kernels" not in ast.unparse(node)
            }
    return len(found)


def private(code: Mapping[str, str]) -> int:
    """Imports of a module with a leading underscore from another package."""
    count = 0
    for path, text in code.items():
        package = path.rpartition("/")[0].replace("/", ".")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("purine."):
                parent, _, last = (node.module or "").rpartition(".")
                count += last.startswith("_") and parent != package
    return count


def of_code(text: str) -> int:
    """Lines with code: no blank lines, comments or docstrings."""
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def statements(text: str) -> int:
    """Statements, without docstrings: a figure that no formatter changes."""
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.stmt)]
    docs = [n for n in nodes if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)]
    return len(nodes) - len(docs)


def repeated(code: Mapping[str, str]) -> int:
    """Lines that are part of a run of `WINDOW` lines which stands elsewhere too."""
    seen: dict[bytes, list[tuple[str, int]]] = {}
    for path, text in code.items():
        lines = [
            (number, line.strip())
            for number, line in enumerate(text.splitlines(), 1)
            if len(line.strip()) > 3 and not re.match(r"\s*(from|import|#)", line)
        ]
        for index in range(len(lines) - WINDOW + 1):
            run = lines[index : index + WINDOW]
            key = hashlib.sha256("\n".join(line for _, line in run).encode()).digest()
            seen.setdefault(key, []).append((path, run[0][0]))
    return len({place for places in seen.values() if len(places) > 1 for place in places})


def figures(tree: Path) -> dict[str, object]:
    code = sources(tree)
    sizes = Counter({path: len(text.splitlines()) for path, text in code.items()})
    lengths = [length(function) for _, function in functions(code)]
    return {
        "lines of purine/": f"{sum(sizes.values()):,}",
        "lines of code": f"{sum(map(of_code, code.values())):,}",
        "statements": f"{sum(map(statements, code.values())):,}",
        "files": len(code),
        "largest files": ", ".join(f"{Path(p).name} {n}" for p, n in sizes.most_common(3)),
        "longest functions": largest(code, length),
        "functions over 60 lines": sum(size > 60 for size in lengths),
        "most parameters": largest(code, parameters),
        "functions with over 8 parameters": sum(
            parameters(function) > 8 for _, function in functions(code)
        ),
        "lines with Any": matching(code, r"\bAny\b"),
        "cast(": matching(code, r"\bcast\("),
        "type: ignore": matching(code, r"type: ignore"),
        "imports inside functions (not cli, not Triton)": deferred(code, below="purine/cli"),
        "private modules imported by other packages": private(code),
        f"lines that begin {WINDOW} lines which stand twice": repeated(code),
        "locals called found, made or place": matching(code, r"^\s*(found|made|place) = "),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trees", nargs="+", type=Path, help="folders of checkouts")
    trees = parser.parse_args().trees
    for tree in trees:
        if not (tree / "purine" / "__init__.py").exists():
            parser.error(f"{tree} is no checkout: it has no purine/__init__.py")
    columns = [figures(tree) for tree in trees]
    print(f"| | {' | '.join(map(str, trees))} |")
    print("|---" * (len(trees) + 1) + "|")
    for name in columns[0]:
        print(f"| {name} | {' | '.join(str(column[name]) for column in columns)} |")


if __name__ == "__main__":
    main()
