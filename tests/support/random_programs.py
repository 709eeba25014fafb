"""Random valid programs, for tests of the program file and its readers. Their code cannot run.

``random_program(seed)`` depends on its seed only. ``strategy()`` gives the same programs to Hypothesis, which shrinks them.
"""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import numpy as np

from xpuruntime.compiler.memory import place
from xpuruntime.decisions import Candidate, Decision, Reason
from xpuruntime.program.program import (
    Binary,
    BufferAllocation,
    BufferKind,
    CompiledProgram,
    EntryPoint,
    ExecutionPlan,
    KernelCall,
    KernelParam,
    RecipeStep,
    StateRef,
    WeightRef,
    WeightTransformRecipe,
)
from xpuruntime.types import DType, Layout, TensorSpec

__all__ = ["random_program", "strategy"]

_DTYPES = (DType.FLOAT32, DType.BFLOAT16, DType.INT64, DType.INT4, DType.BOOL, DType.FLOAT8_E4M3FN)
_PLAIN: tuple[Any, ...] = (
    None, True, 0, -3, 2**80, 1.5, math.inf, -math.inf, "text", "ünïcode ☃", [], {}, [1, [2.5, "x"]],
    {"float": 1}, {"map": {"float": "nan"}}, {"a": {"b": [None, math.inf]}},
)  # fmt: skip


def random_program(seed: int) -> CompiledProgram:
    """Return a valid program of a few calls."""
    return _ProgramBuilder(random.Random(seed)).program()


def strategy() -> Any:
    """Return Hypothesis' strategy of programs."""
    from hypothesis import strategies as st

    return st.randoms(use_true_random=False).map(lambda draw: _ProgramBuilder(draw).program())


class _ProgramBuilder:
    """A builder of one program from random draws."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw

    def program(self) -> CompiledProgram:
        draw = self.draw
        weights = tuple(self.weight(f"w{i}") for i in range(draw.randint(0, 3)))
        recipes = tuple(self.recipe(i, w) for i, w in enumerate(weights))
        dense = [r for r in recipes if r.spec.layout is None]
        states = tuple(
            StateRef(f"s{i}", dense[0].spec, dense[0].name) if dense and draw.random() < 0.5 else StateRef(f"s{i}", self.spec())
            for i in range(draw.randint(0, 2))
        )  # fmt: skip
        binaries = tuple(
            Binary("cpu:x86-64-v4", "elf-x86-64", ("avx512f", "lib:onednn>=3.2")[: draw.randint(0, 2)], ("f", "g"),
                   b"\x7fELF" + draw.randbytes(draw.randint(0, 90)), draw.choice(("", "// ☃\n", "void f();\n")), "g++ 12 -O3")
            for _ in range(draw.randint(1, 2))
        )  # fmt: skip
        entries = tuple(
            self.entry(name, recipes, states, len(binaries))
            for name in ("prefill", "decode")[: draw.randint(1, 2)]
        )
        decision = Decision(
            "kernel conv",
            "c1",
            Candidate("conv/generated", Reason.DEFAULT, "first", facts={"ms": math.inf}),
            (Candidate("conv/onednn", Reason.NOT_INSTALLED, "no library", "install it"),),
        )
        facts = {"x": draw.choice(_PLAIN), "y": draw.choice(_PLAIN)}
        digest = draw.choice(("", "a" * 64))
        decisions = (decision,) * draw.randint(0, 2)
        return CompiledProgram("made", entries, weights, recipes, states, binaries, decisions, digest, facts)

    def spec(self, name: str = "") -> TensorSpec:
        shape = tuple(self.draw.choice((0, 1, 2, 3, 5)) for _ in range(self.draw.randint(0, 3)))
        return TensorSpec(shape, self.draw.choice(_DTYPES), name)

    def with_layout(self, spec: TensorSpec) -> TensorSpec:
        """Return the spec, perhaps with a layout."""
        if self.draw.random() < 0.5:
            return spec
        order = list(range(spec.rank))
        self.draw.shuffle(order)
        alloc = tuple(int(d) + self.draw.choice((0, 0, 3)) for d in spec.shape if isinstance(d, int))
        return replace(spec, layout=Layout(tuple(order), alloc))

    def weight(self, name: str) -> WeightRef:
        spec = self.spec()
        match self.draw.randrange(3):
            case 0:
                return WeightRef(name, spec)
            case 1:
                return WeightRef(name, spec, "w.safetensors", "safetensors", "key", 0, "0" * 64)
            case _:
                return WeightRef(name, spec, data=self.draw.randbytes(spec.size_bytes or 0))

    def recipe(self, i: int, weight: WeightRef) -> WeightTransformRecipe:
        if self.draw.random() < 0.5:
            return WeightTransformRecipe(f"r{i}", self.with_layout(weight.spec), weight.name)
        spec = replace(weight.spec, dtype=DType.FLOAT32)
        steps = (RecipeStep("cast", ("%in",), {"dtype": "float32"}), RecipeStep("exp", ("%0",)))
        return WeightTransformRecipe(f"r{i}", self.with_layout(spec), weight.name, steps)

    def entry(
        self,
        name: str,
        recipes: tuple[WeightTransformRecipe, ...],
        states: tuple[StateRef, ...],
        binaries: int,
    ) -> EntryPoint:
        inputs = tuple(self.spec(f"in{i}") for i in range(self.draw.randint(0, 2)))
        outputs = tuple(self.spec(f"out{i}") for i in range(self.draw.randint(1, 2)))
        plans = tuple(
            self.plan(inputs, outputs, recipes, states, i) for i in range(self.draw.randint(1, binaries))
        )
        ins, outs = tuple(f"{s.name}.in" for s in inputs), tuple(f"{s.name}.out" for s in outputs)
        return EntryPoint(name, inputs, outputs, ins, outs, plans, {"batch": self.draw.randint(0, 9)})

    def plan(
        self,
        inputs: tuple[TensorSpec, ...],
        outputs: tuple[TensorSpec, ...],
        recipes: tuple[WeightTransformRecipe, ...],
        states: tuple[StateRef, ...],
        binary: int,
    ) -> ExecutionPlan:
        fixed = [(f"{s.name}.in", BufferKind.INPUT, replace(s, name="")) for s in inputs]
        fixed += [(r.name, BufferKind.WEIGHT, r.spec) for r in recipes]
        fixed += [(s.name, BufferKind.STATE, s.spec) for s in states]
        left = [(f"{s.name}.out", BufferKind.OUTPUT, replace(s, name="")) for s in outputs]
        middle = [
            (f"t{i}", BufferKind.SCRATCH, self.with_layout(self.spec()))
            for i in range(self.draw.randint(0, 5))
        ]
        ready, calls = [n for n, _, _ in fixed], []
        for name, _, _ in (*middle, *left):
            reads = tuple(self.draw.sample(ready, min(len(ready), self.draw.randint(0, 3))))
            calls.append(self.call(reads, (name,)))
            ready.append(name)
        lives: dict[str, list[int]] = {}
        for at, call in enumerate(calls):
            for n in (*call.inputs, *call.outputs):
                lives.setdefault(n, []).append(at)
        scratch = {n: (s.size_bytes or 0, lives[n][0], lives[n][-1]) for n, _, s in middle}
        offsets, arena = place(scratch)
        buffers = [
            BufferAllocation(
                n,
                k,
                s,
                s.size_bytes or 0,
                n,
                offsets.get(n, 0),
                lives.get(n, [-1])[0],
                lives.get(n, [-1])[-1],
            )
            for n, k, s in (*fixed, *middle, *left)
        ]
        buffers += [replace(b, name=f"{b.name}.view") for b in buffers if self.draw.random() < 0.2]
        return ExecutionPlan(
            "cpu:x86-64-v4", binary, tuple(calls), tuple(buffers), arena, self.draw.randint(1, 99)
        )

    def call(self, reads: tuple[str, ...], writes: tuple[str, ...]) -> KernelCall:
        draw = self.draw
        params = (
            KernelParam("n", "i64", draw.choice((0, -1, 2**63 - 1))),
            KernelParam("eps", "f64", draw.choice((1e-5, -0.0, math.inf, float(np.float32(0.1))))),
        )[: draw.randint(0, 2)]
        library = draw.choice(("", "", "onednn"))
        options = {"o": draw.choice(_PLAIN)} if library else {}
        return KernelCall(
            "conv/generated", draw.choice(("f", "g")), reads, writes, params, draw.randint(1, 99), draw.randint(1, 9),
            draw.choice((0, 64)), library, options, ("node",), ("convolution",), draw.choice((0, 10**12)), 7,
        )  # fmt: skip
