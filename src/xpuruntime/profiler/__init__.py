"""Profiling: events, ranges for vendor tools, and the receipt.

Importing this package imports none of its parts: import what you need from ``profiler.events``, ``profiler.nvtx`` or
``profiler.receipt``.
"""
