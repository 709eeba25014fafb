"""The onnx package's backend suites, on any engine and on native kernels."""
