"""Test tools for users: the conformance suites, CUDA emulation and the Polygraphy runner."""
