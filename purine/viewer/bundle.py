"""The scripts of the page as one text.

Each file of `static/` is a module with `import {...} from "./other.js"` at its top and `export` in
front of its public names, so it can be read and tested alone. A page from disk may not load files,
so the modules are put into one script, each inside a function: nothing is renamed or rewritten.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files

__all__ = ["bundled", "static_text"]

_IMPORT = re.compile(r'^import \{([^}]*)\} from "\./([\w]+)\.js";\n', re.MULTILINE)
_EXPORT = re.compile(
    r"^export (?=(?:async )?(?:function\*?|class|const|let) ([\w$]+))", re.MULTILINE
)


@cache
def static_text(name: str) -> str:
    """The text of a file in `static/`."""
    return files("purine.viewer").joinpath("static", name).read_text(encoding="utf-8")


def bundled(entry: str) -> str:
    """The module `entry` with all that it imports, as one script.

    >>> "mountGraph" in bundled("graph_page")
    True
    """
    order: list[str] = []
    _visit(entry, order, ())
    modules = "\n".join(_wrapped(name) for name in order)
    return f'"use strict";\n{modules}\n'


def _visit(name: str, order: list[str], above: Sequence[str]) -> None:
    """Add a module after those that it imports."""
    assert name not in above, f"{name}.js imports itself: {' > '.join((*above, name))}"
    if name in order:
        return
    for found in _IMPORT.finditer(static_text(f"{name}.js")):
        _visit(found[2], order, (*above, name))
    order.append(name)


def _wrapped(name: str) -> str:
    text = static_text(f"{name}.js")
    exported = ", ".join(found[1] for found in _EXPORT.finditer(text))
    body = _IMPORT.sub(lambda found: f"const {{{found[1]}}} = module_{found[2]};\n", text)
    body = _EXPORT.sub("", body)
    return (
        f"// {name}.js\nconst module_{name} = (() => {{\n{body}\nreturn {{{exported}}};\n}})();\n"
    )
