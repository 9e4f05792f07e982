"""Readers of other frameworks' definitions: each gives a graph of named kinds."""
