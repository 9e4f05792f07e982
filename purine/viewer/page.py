"""The page as one HTML file that contains style, script and document, and fetches nothing.

Names in a graph or a trace are untrusted and cannot leave the document: it is JSON in which `<` is
escaped, the script only sets text, and a content security policy allows only the page's own script,
by its hash.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json

from purine.viewer.bundle import bundled, static_text
from purine.viewer.columns import Json

__all__ = ["page", "policy"]

_STYLES = ("page.css", "timeline.css", "panels.css", "graph.css")
_TITLE = 200
"""Characters of a title: names may be long."""


def page(content: dict[str, Json]) -> str:
    """The HTML of a document.

    >>> text = page({"title": "</script><b>", "parts": [], "live": None})
    >>> "</script><b>" in text, "<title>&lt;/script&gt;&lt;b&gt; - Purine</title>" in text
    (False, True)
    """
    script, style = bundled("page"), "\n".join(map(static_text, _STYLES))
    data = json.dumps(content, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    title = html.escape(str(content["title"])[:_TITLE].encode("ascii", "replace").decode())
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy(script, style)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<title>{title} - Purine</title>
<style>{style}</style>
</head>
<body>
<noscript>This page draws its document with a script, which the browser does not run.</noscript>
<div id="page"></div>
<script type="application/json" id="document">{data}</script>
<script type="module">{script}</script>
</body>
</html>
"""


def policy(script: str, style: str) -> str:
    """The content security policy of the page: run this script, use this style, ask its own
    server."""
    return (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"
