"""Foresight: the dispatcher's own core on a virtual clock, over lowered graphs of all hosts."""
