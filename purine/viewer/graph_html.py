"""A graph as one HTML file, in which groups open, and nothing is fetched."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from typing import Any

from purine.viewer.bundle import bundled, static_text
from purine.viewer.page import policy

__all__ = ["to_html"]

_BODY = """
html { color-scheme: light dark; }
body { margin: 0; }
#page > .pg-view { box-sizing: border-box; height: 100vh; padding: 10px; }
@media (max-width: 760px) { #page > .pg-view { height: auto; } }
"""


def to_html(document: Mapping[str, Any]) -> str:
    """The page of a graph document.

    >>> text = to_html({"title": "</script><b>", "nodes": []})
    >>> "</script><b>" in text
    False
    """
    script, style = bundled("graph_page"), static_text("graph.css") + _BODY
    data = json.dumps(document, separators=(",", ":")).replace("<", "\\u003c")
    title = escape(str(document["title"])[:200].encode("ascii", "replace").decode())
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy(script, style)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title} - Purine</title>
<style>{style}</style>
</head>
<body>
<noscript>This page draws its graph with a script, which the browser does not run.</noscript>
<main id="page" class="pg"></main>
<script type="application/json" id="document">{data}</script>
<script type="module">{script}</script>
</body>
</html>
"""
