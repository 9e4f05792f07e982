"""Iterations that a loss scale skips. They are counted, and too many in a row end the job.

One sample too large for float16 makes the loss NaN. The graph then keeps every weight and halves
the scale, so the job goes on.
"""

from __future__ import annotations

import logging
import math

from purine.errors import RunError
from purine.graph import Builder, Graph
from purine.job.folder import RunFolder
from purine.kinds.loss_scale import FINITE, LOSS_SCALE
from purine.runtime.result import Result

__all__ = ["MOST_IN_A_ROW", "Overflows", "with_overflow_flag"]

MOST_IN_A_ROW = 25
"""Overflows in a row that end a job: 24 halve the largest loss scale, 2 ** 24, to 1."""

_log = logging.getLogger("purine")


def with_overflow_flag(step: Graph) -> Graph:
    """The step with the flag of its loss scale (were the gradients finite?) among its outputs."""
    if FINITE not in step.blobs or FINITE in step.outputs:
        return step
    builder = Builder(step)
    builder.outputs.append(FINITE)
    return builder.graph()


class Overflows:
    """Counts the iterations that a loss scale `skipped`.

    The first loss that is not finite is logged, later ones are not.
    """

    def __init__(self, skipped: int = 0) -> None:
        self.skipped = skipped
        self._in_a_row = 0
        self._logged = False

    def note(self, result: Result, loss: float, folder: RunFolder) -> None:
        """Count an iteration; raises `RunError` if too many in a row overflowed."""
        updated = bool(result[FINITE])
        self.skipped += not updated
        if updated and math.isfinite(loss):
            self._in_a_row = 0
            return
        self._in_a_row += 1
        iteration, scale = result.iteration + 1, result[LOSS_SCALE]
        if self._in_a_row == MOST_IN_A_ROW:
            raise RunError(
                f"{MOST_IN_A_ROW} iterations in a row overflowed, the last of them {iteration}",
                where=folder.path,
                expected="a finite loss and finite gradients, with a loss scale small enough",
                found=f"a loss of {loss} with a loss scale of {scale:g}",
                remedy="look for samples too large for float16, or start again with "
                "another --out and --precision bf16, a smaller --lr, a warm-up or --clip"
                + folder.kept_text(),
            )
        if not math.isfinite(loss) and not self._logged:
            self._logged = True
            what = "its gradients are finite, so its update counts"
            if not updated:
                what = f"its update is skipped, and the loss scale of {scale:g} is halved"
            _log.warning("the loss is %s in iteration %d: %s", loss, iteration, what)
