"""Intermediate values of a model on one engine: which can be read, and their contents after one run.

``side`` opens a model with its policy and engine as an observer (``observer``). ``program_values`` reads the buffers of a compiled
program, ``engine_values`` cuts the model for an engine that is a black box, ``reference_values`` asks the interpreter.
"""
