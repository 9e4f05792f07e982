"""Loss and accuracy of runs as a plot."""

from __future__ import annotations

from collections.abc import Sequence

from purine.errors import ConfigError
from purine.job.history import History, short_names
from purine.plots.curves import Curve, Panel, Plot

__all__ = ["ACROSS", "curves_of"]

ACROSS = {"iterations": "iteration", "seconds": "seconds"}
"""What a plot may have across, and the metric that tells it."""


def curves_of(
    histories: Sequence[History],
    *,
    across: str = "iterations",
    log: bool = False,
    window: int | None = None,
) -> Plot:
    """The plot of runs: a panel for the loss, and one for accuracy where a run has some."""
    metric = ACROSS[across]
    labels = short_names([history.path for history in histories])
    panels = []
    for title, test in (("loss", "test_loss"), ("accuracy", "test_accuracy")):
        curves = []
        for label, history in zip(labels, histories, strict=True):
            name = title if title == "loss" else _accuracy(history)
            points = history.points(name, metric) if name else ()
            curves.append(Curve(label, points, history.test_points(test, metric)))
        if any(curve.all for curve in curves):
            panels.append(Panel(title, tuple(curves), log and title == "loss"))
    if not panels:
        paths = ", ".join(str(history.path) for history in histories)
        what, expected = "there is nothing to plot yet", "at least one line in metrics.jsonl"
        remedy = "wait for the first metrics, or train with a smaller --log-every"
        raise ConfigError(what, expected, "none", remedy, where=paths)
    if log and not any(y > 0 for curve in panels[0].curves for _, y in curve.all):
        what, expected = "no loss is above 0", "losses above 0, for a logarithmic axis"
        raise ConfigError(what, expected, "none", "leave --log out")
    title = labels[0] if len(labels) == 1 else f"{len(labels)} runs"
    return Plot(f"Training: {title}", across, tuple(panels), window)


def _accuracy(history: History) -> str | None:
    """The name of the accuracy among the outputs of a net that were written while it trained."""
    names = dict.fromkeys(key for row in history.trained for key in row)
    if "accuracy" in names:
        return "accuracy"
    return next((name for name in names if "accuracy" in name), None)
