"""Pictures of results: curves and confusion tables, as SVG and in a terminal.

Nothing here knows of runs or graphs, or needs more than the standard library.
"""
