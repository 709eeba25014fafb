"""The TensorRT engine: ``api`` (what differs between 8.6, 10 and 11), ``options``, ``build`` (engines), ``run``, ``evidence``."""
