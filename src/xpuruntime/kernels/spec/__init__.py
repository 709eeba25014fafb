"""Specifications: what an op computes, as data, for every kind of target. No kernel text, no device."""
