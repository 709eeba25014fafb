"""The OpenVINO engine: ``plugin`` (names), ``devices``, ``build`` (model to blob), ``run`` (blob to requests), ``evidence``."""
