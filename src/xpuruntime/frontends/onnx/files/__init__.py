"""Files: ONNX models on disk, checked, measured and cut without importing them."""
