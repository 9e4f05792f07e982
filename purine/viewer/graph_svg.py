"""A graph as one SVG picture, for papers and for readers without scripts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from importlib.resources import files

from purine.viewer.arrange import Box, Picture, arrange, opened
from purine.viewer.columns import Document
from purine.viewer.graph_edges import Edge, edges_of, path_of

__all__ = ["COLUMN_TITLES", "to_svg"]

COLUMN_TITLES: Mapping[str, str] = {
    "clock": "Clock",
    "weights": "Weights",
    "forward": "Forward",
    "backward": "Backward",
    "gradients": "Gradients",
    "update": "Update",
}
_MARGIN, _TOP, _COLUMN_TOP = 24.0, 66.0, 26.0
_TITLE = 80
_DEVICES = 8
"""Colours of devices, which repeat."""


def to_svg(document: Document, *, depth: int | None = None) -> str:
    """The picture of a graph document, with the groups above a depth open.

    Without a depth, groups are open as far as the picture stays readable.
    """
    picture = arrange(document, opened(document, depth))
    edges = edges_of(document, picture)
    drawn = [edge for edge in edges if edge.form != "bucket"]
    note = _note(document, len(edges) - len(drawn))
    legend = list(_legend(document, note))
    titles = len(document["columns"]) > 1
    top = _TOP + (_COLUMN_TOP if titles else 0.0)
    noted = _note_left(document) + 6.6 * len(note) - _MARGIN
    wide = max(picture.w, noted, _legend_width(document)) + 2 * _MARGIN
    high = picture.h + top + _MARGIN
    style = files("purine.viewer").joinpath("static", "graph.css").read_text(encoding="utf-8")
    left = (wide - picture.w) / 2
    lines = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        f'<svg xmlns="http://www.w3.org/2000/svg" class="pg" role="img" '
        f'aria-labelledby="pg-title pg-desc" width="{wide:.0f}" height="{high:.0f}" '
        f'viewBox="0 0 {wide:.0f} {high:.0f}">',
        f'<title id="pg-title">{_text(document["title"])}</title>',
        f'<desc id="pg-desc">{_text(_description(document))}</desc>',
        f"<style>{style}</style>",
        f'<rect width="{wide:.0f}" height="{high:.0f}" style="fill: var(--pg-paper)"/>',
        *legend,
        f'<g transform="translate({left:.1f} {top:.1f})">',
        *(_column_titles(document, picture) if titles else ()),
        '<g class="pg-edges" aria-hidden="true">',
        *_edges(document, picture, drawn),
        "</g>",
        *(_box(document, number, box) for number, box in picture.boxes.items()),
        "</g>",
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _description(document: Document) -> str:
    roles = ", ".join(document["roles"])
    return (
        f"A graph of {document['ops']:,} ops and {document['blobs']:,} blobs on "
        f"{', '.join(document['locations'])}. Its parts: {roles}. Boxes are ops and groups of ops, "
        "the tags below them are the blobs that they write."
    )


def _legend_items(document: Document) -> list[tuple[str, str]]:
    items = [(f"role-{role}", role) for role in document["roles"]]
    locations = document["locations"]
    if len(locations) > 1:
        shown = locations if len(locations) <= _DEVICES else locations[: _DEVICES - 1]
        items += [(f"device-{at % _DEVICES}", name) for at, name in enumerate(shown)]
        if len(shown) < len(locations):
            items.append(("", f"and {len(locations) - len(shown)} more"))
    return items


def _legend_width(document: Document) -> float:
    return sum(30 + 7.0 * len(text) for _, text in _legend_items(document))


def _note_left(document: Document) -> float:
    return _MARGIN + 10.5 * len(document["title"][:_TITLE]) + 14


def _note(document: Document, hidden: int) -> str:
    note = f"{document['ops']:,} ops, {document['blobs']:,} blobs"
    if document["templates"] < document["shown"]:
        note += f"; {document['templates']:,} ops without replicas and copies"
    if hidden:
        note += f"; {hidden} edges of buckets of gradients are not drawn"
    return note


def _legend(document: Document, note: str) -> Iterator[str]:
    title = _text(document["title"][:_TITLE])
    yield f'<text class="pg-title" x="{_MARGIN}" y="28">{title}</text>'
    yield f'<text class="pg-note" x="{_note_left(document):.0f}" y="28">{note}</text>'
    x = _MARGIN
    for name, text in _legend_items(document):
        if name.startswith("role"):
            shape = f'<rect class="pg-shape" x="{x:.1f}" y="42" width="14" height="12" rx="3"/>'
        else:
            shape = f'<rect class="pg-{name}" x="{x + 4:.1f}" y="42" width="6" height="12"/>'
        label = f'<text class="pg-note" x="{x + 19:.1f}" y="52">{_text(text)}</text>'
        yield f'<g class="pg-{name}">{shape if name else ""}{label}</g>'
        x += 30 + 7.0 * len(text)


def _column_titles(document: Document, picture: Picture) -> Iterator[str]:
    for name, (x, w) in zip(document["columns"], picture.columns, strict=True):
        yield (
            f'<text class="pg-column" text-anchor="middle" x="{x + w / 2:.1f}" y="-14">'
            f"{COLUMN_TITLES[name]}</text>"
        )


def _edges(document: Document, picture: Picture, edges: Sequence[Edge]) -> Iterator[str]:
    yield (
        '<defs><marker id="pg-head" viewBox="0 0 8 8" refX="7.2" refY="4" markerWidth="6" '
        'markerHeight="6" orient="auto"><path class="pg-arrow" d="M0 0.8L8 4L0 7.2z"/></marker>'
        "</defs>"
    )
    for edge in edges:
        way = path_of(document, picture, edge)
        yield f'<path class="pg-edge pg-edge-{edge.form}" marker-end="url(#pg-head)" d="{way}"/>'


def _box(document: Document, number: int, box: Box) -> str:
    node = document["nodes"][number]
    kind, role = node["type"], _role(node)
    name = "/".join(_names(document, number))
    state = " pg-open" if box.is_open else ""
    x, y, w, h = box.x, box.y, box.w, box.h
    chip = node.get("chip", "") if not box.is_open else ""
    body = h - (15 if chip else 0)
    parts = [
        f'<g class="pg-box pg-{kind} pg-role-{role}{state}" data-node="{number}" role="group">'
    ]
    parts.append(f"<title>{_text(name)}</title>")
    if kind == "group" and not box.is_open and len(node["lines"]) and node["ops"] > 1:
        parts.append(_rect("pg-shape pg-behind", x + 3, y - 3, w, body, 5))
    parts.append(_rect("pg-shape", x, y, w, body, 17 if kind == "blob" else 5))
    parts.extend(_devices(document, node, x, y, body))
    first, second = node["lines"]
    if box.is_open:
        parts.append(_words("pg-first", x + 12, y + 16, first, "start"))
    else:
        parts.append(_words("pg-first", x + w / 2, y + 15, first))
        parts.append(_words("pg-second", x + w / 2, y + 29, second))
    if chip:
        wide = min(w - 4, 6.4 * len(chip) + 14)
        rect = _rect("", x + (w - wide) / 2, y + body, wide, 15, 7)
        parts.append(f'<g class="pg-chip">{rect}{_words("", x + w / 2, y + body + 11, chip)}</g>')
    return "".join([*parts, "</g>"])


def _role(node: Document) -> str:
    if node["type"] == "group":
        return str((node["roles"] or ["blob"])[0])
    return str(node.get("role", "blob"))


def _names(document: Document, number: int) -> list[str]:
    """The labels of a node and of the groups that contain it."""
    names: list[str] = []
    while number:
        node = document["nodes"][number]
        names.append(str(node["label"]))
        number = node["parent"]
    return names[::-1]


def _devices(document: Document, node: Document, x: float, y: float, h: float) -> Iterator[str]:
    """A stripe at the left of a box with the colours of its devices."""
    place = document["places"][node["place"]]
    if len(document["locations"]) < 2 or node["type"] == "blob":
        return
    shown = place[:_DEVICES]
    step = (h - 8) / max(1, len(shown))
    for at, device in enumerate(shown):
        top = y + 4 + at * step
        yield _rect(f"pg-device-{device % _DEVICES}", x + 3, top, 3.5, step, 0)


def _rect(name: str, x: float, y: float, w: float, h: float, radius: float) -> str:
    round_ = f' rx="{radius:g}"' if radius else ""
    called = f' class="{name}"' if name else ""
    return f'<rect{called} x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h:.1f}"{round_}/>'


def _words(name: str, x: float, y: float, text: str, anchor: str = "middle") -> str:
    called = f' class="{name}"' if name else ""
    return f'<text{called} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{_text(text)}</text>'


def _text(text: str) -> str:
    """Text that XML can hold."""
    kept = (
        c if c.isprintable() and not 0xD800 <= ord(c) < 0xE000 else "\ufffd" for c in text[:500]
    )
    return escape("".join(kept))
