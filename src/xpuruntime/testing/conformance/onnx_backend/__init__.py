"""Suites of the onnx package's own backend cases, on any engine and on the native kernels."""
