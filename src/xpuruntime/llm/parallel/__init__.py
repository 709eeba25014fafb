"""Tensor parallelism: a language model whose linear layers are divided over several devices."""
