"""Running a graph: the dispatcher core, its executors, traces and checkpoints."""
