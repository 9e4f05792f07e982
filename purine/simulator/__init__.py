"""Predictions: the dispatcher's own core on a virtual clock, over the lowered graphs of all
hosts."""
