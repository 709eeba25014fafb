"""The OpenVINO engine: ``plugin`` (names), ``devices``, ``build`` (model to blob), ``run`` (blob to infer requests), ``evidence`` (what ran)."""
