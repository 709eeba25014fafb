"""How fast this machine reads memory, in GB/s: the bound of decoding, measured by whoever reads fastest.

    python benchmarks/read_bandwidth.py [--threads 2]

Two ways over more than any cache holds, the better of which counts: NumPy's maximum of integers, a Python thread for each part; and a program of our
own that sums rows of float32 on the pool of threads that decoders run on. The first alone reads short of what a decoder reaches: it knows nothing of what
comes next, and its threads start late.
"""

from __future__ import annotations

import argparse
import threading
import time

import numpy as np

from xpuruntime.compiler import compile as compile_graph
from xpuruntime.ir import GraphBuilder
from xpuruntime.runtime import Executor

BYTES = 512 << 20
ROWS = 4096


class ReadBandwidth:
    """Probes that are ready to run: call it now and then next to other measurements, and keep the best of all."""

    def __init__(self, threads: int) -> None:
        self.data = np.ones((ROWS, BYTES // 4 // ROWS), np.float32)
        self.parts = np.array_split(self.data.view(np.int32).reshape(-1), threads)
        b = GraphBuilder("read")
        x = b.input("x", f"float32{list(self.data.shape)}")
        b.output("y", b.sum(x, dim=[1]))
        self.program = Executor(compile_graph(b.build()), threads=threads, contexts=1)
        self.sums = [np.empty(ROWS, np.float32)]
        self.best = 0.0
        self.ways = {"numpy": self._numpy, "program": self._program}
        self.reached = dict.fromkeys(self.ways, 0.0)
        self._program()
        assert (self.sums[0] == self.data.shape[1]).all()

    def __call__(self, rounds: int = 3) -> float:
        """GB/s, the best so far."""
        for _ in range(rounds):
            for name, way in self.ways.items():
                begun = time.perf_counter()
                way()
                speed = BYTES / (time.perf_counter() - begun) / 1e9
                self.reached[name] = max(self.reached[name], speed)
        self.best = max(self.reached.values())
        return self.best

    def _numpy(self) -> None:
        work = [threading.Thread(target=p.max) for p in self.parts]
        for w in work:
            w.start()
        for w in work:
            w.join()

    def _program(self) -> None:
        self.program.run_arrays([self.data], self.sums)


if __name__ == "__main__":
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--threads", type=int, default=2)
    probe = ReadBandwidth(parse.parse_args().threads)
    probe(10)
    print(", ".join(f"{name} {speed:.1f} GB/s" for name, speed in probe.reached.items()))
