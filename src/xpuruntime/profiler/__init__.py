"""What ran, when, and for how long: events, ranges for vendors' tools, and the receipt.

Importing this package imports none of its parts: take what you need from ``profiler.events``, ``profiler.nvtx`` or
``profiler.receipt``.
"""
