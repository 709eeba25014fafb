"""Streams: ordered work on the host and on CUDA devices, and events."""
