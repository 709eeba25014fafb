"""Seeded networks in PyTorch and ONNX whose weights hide no error."""
