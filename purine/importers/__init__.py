"""Nets from elsewhere as graphs."""
