"""Definitions of the training ops, forward and backward, as functions that write IR. One file per op; none imports torch."""
