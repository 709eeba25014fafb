"""The native engine: our compiler and runtime as an engine. ``engine`` has the functions of ``protocols.Engine``."""
