# One element at a time on the device; NumPy does all of them. Results are written into `out`.
import numpy as np


def relu(x, *, out):
    np.maximum(x, 0, out=out)


def add(a, b, *, out, alpha=1):
    np.add(a, np.multiply(b, alpha, dtype=out.dtype), out=out)


def mul(a, b, *, out):
    np.multiply(a, b, out=out)


def sigmoid(x, *, out):
    out[...] = 1 / (1 + np.exp(-x))


def tanh(x, *, out):
    np.tanh(x, out=out)


def clone(x, *, out):
    out[...] = x
