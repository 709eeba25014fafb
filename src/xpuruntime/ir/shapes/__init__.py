"""Shapes: the symbols of a graph, their bounds, fixed sizes, and the named dims of a node."""
