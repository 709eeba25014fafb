"""The ONNX Runtime engine: ``plugin`` (names), ``build`` (what can be built), ``run`` (the session), ``evidence`` (what ran)."""
