"""ONNX Runtime's own ops: cases, and what both sides compute for them."""
