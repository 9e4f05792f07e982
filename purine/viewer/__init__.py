"""The page of a run: graph, timeline, curves, memory and traffic in one file, linked by node."""
