"""Loops: a node's iteration space, reads, results and reductions as plans, and data movement as moves of boxes."""
