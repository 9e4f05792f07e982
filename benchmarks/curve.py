"""A picture of how the rates of contenders grow with the number of devices."""

from __future__ import annotations

__all__ = ["picture"]


def picture(title: str, counts: list[int], medians: dict[str, list[float]]) -> str:
    """The acceleration over one device, with the diagonal of perfect scaling."""
    width, height, margin = 560, 420, 56
    most = max(counts)
    base = medians["limit" if "limit" in medians else "purine"][0] / counts[0]
    colours = {"purine": "#7b2d8b", "limit": "#888888", "ddp": "#d9822b"}
    colours |= {"hosts": "#2d6cb5", "synchronous": "#4a9a5b"}

    def point(count: float, value: float) -> str:
        x = margin + (width - 2 * margin) * count / most
        y = height - margin - (height - 2 * margin) * value / most
        return f"{x:.1f},{y:.1f}"

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{width / 2}" y="28" text-anchor="middle" font-size="16">{title}</text>',
        f'<polyline points="{point(0, 0)} {point(most, most)}" stroke="#cccccc" fill="none" '
        'stroke-dasharray="4 4"/>',
        f'<polyline points="{point(0, most)} {point(0, 0)} {point(most, 0)}" stroke="black" '
        'fill="none"/>',
        f'<text x="{width / 2}" y="{height - 14}" text-anchor="middle">devices (one core each)'
        "</text>",
        f'<text transform="translate(18,{height / 2}) rotate(-90)" text-anchor="middle">'
        "acceleration</text>",
    ]
    for count in counts:
        x, y = point(count, 0).split(",")
        parts.append(f'<text x="{x}" y="{float(y) + 18}" text-anchor="middle">{count}</text>')
        x, y = point(0, count).split(",")
        parts.append(
            f'<text x="{float(x) - 8}" y="{float(y) + 4}" text-anchor="end">{count}</text>'
        )
    for row, (name, found) in enumerate(medians.items()):
        places = [point(c, v / base) for c, v in zip(counts, found, strict=True)]
        colour = colours[name]
        parts.append(
            f'<polyline points="{" ".join(places)}" stroke="{colour}" stroke-width="2" '
            'fill="none"/>'
        )
        for place in places:
            x, y = place.split(",")
            parts.append(f'<circle cx="{x}" cy="{y}" r="3.5" fill="{colour}"/>')
        top = 60 + 20 * row
        parts.append(
            f'<rect x="{margin + 16}" y="{top - 10}" width="12" height="12" fill="{colour}"/>'
        )
        parts.append(f'<text x="{margin + 34}" y="{top}">{name}</text>')
    return "\n".join([*parts, "</svg>", ""])
