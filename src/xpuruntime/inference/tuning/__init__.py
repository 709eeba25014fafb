"""Measurement of kernels per call inside a program: what ``tune: {on_build: SECONDS}`` of a session and ``xpu tune`` share."""
