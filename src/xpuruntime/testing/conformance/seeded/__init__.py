"""Seeded networks in PyTorch and ONNX whose weights expose errors."""
