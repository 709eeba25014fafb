"""Readers of ONNX, PyTorch and OpenVINO models. Vendor packages are imported inside functions only."""
