"""Expressions: pointwise ops of the IR as C++ text over the prelude."""
