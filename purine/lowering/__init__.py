"""From a step to what one machine runs: a tuple of named passes."""
