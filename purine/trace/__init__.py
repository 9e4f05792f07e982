"""Traces of runs: events (what ran where and when), their file, and reports about them."""
