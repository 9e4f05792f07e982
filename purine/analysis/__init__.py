"""What is known of a graph without running it: shapes, cost, aliases, samples, memory."""

from purine.analysis.infer import check, complete, problems, with_batch

__all__ = ["check", "complete", "problems", "with_batch"]
