"""Draw the diagrams of docs/images: `python scripts/diagrams.py`. A test fails when one is stale."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "images"
FILLS = {"data": "#e8eaf6", "step": "#ffffff", "result": "#e0f2f1", "file": "#fff8e1"}
STROKES = {"data": "#3f51b5", "step": "#607d8b", "result": "#00796b", "file": "#f9a825"}


@dataclass(frozen=True)
class Box:
    """A box with a title and small lines below it; `kind` gives its color."""

    x: int
    y: int
    width: int
    height: int
    kind: str
    title: str
    lines: tuple[str, ...] = ()


@dataclass
class Diagram:
    """Boxes by name, arrows between them with labels, on a page of one size."""

    width: int
    height: int
    text: str
    boxes: dict[str, Box] = field(default_factory=dict)
    arrows: list[tuple[list[tuple[int, int]], str, tuple[int, int]]] = field(default_factory=list)
    groups: list[Box] = field(default_factory=list)

    def box(
        self, name: str, x: int, y: int, width: int, height: int, kind: str, title: str, *lines: str
    ) -> None:
        """Place a box."""
        self.boxes[name] = Box(x, y, width, height, kind, title, lines)

    def group(self, x: int, y: int, width: int, height: int, title: str) -> None:
        """Place a dashed frame behind the boxes."""
        self.groups.append(Box(x, y, width, height, "step", title))

    def right(self, start: str, end: str, label: str = "") -> None:
        """Draw an arrow from the right side of a box to the left side of another."""
        a, b = self.boxes[start], self.boxes[end]
        x0, y0, x1, y1 = a.x + a.width, a.y + a.height // 2, b.x, b.y + b.height // 2
        middle = (x0 + x1) // 2
        points = [(x0, y0), (x1, y1)] if y0 == y1 else [(x0, y0), (middle, y0), (middle, y1), (x1, y1)]
        self.arrows.append((points, label, (middle, min(y0, y1) - 6)))

    def down(self, start: str, end: str, label: str = "") -> None:
        """Draw an arrow from one box down, or up, to another at the same middle or the start's."""
        a, b = self.boxes[start], self.boxes[end]
        x = a.x + a.width // 2
        x = x if b.x <= x <= b.x + b.width else b.x + b.width // 2
        below = b.y > a.y
        y0, y1 = (a.y + a.height, b.y) if below else (a.y, b.y + b.height)
        self.arrows.append(([(x, y0), (x, y1)], label, (x + 8, (y0 + y1) // 2 + 4)))

    def svg(self) -> str:
        """Return the drawing."""
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" role="img" '
            f'font-family="system-ui, -apple-system, Segoe UI, Noto Sans, Helvetica, Arial, sans-serif">\n'
            f"<title>{escape(self.text)}</title>\n"
            '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">'
            '<path d="M0 0L10 5L0 10z" fill="#455a64"/></marker></defs>\n'
            f'<rect width="{self.width}" height="{self.height}" rx="8" fill="#fff"/>\n'
        ]
        parts += [self._frame(group) for group in self.groups]
        for points, label, (x, y) in self.arrows:
            path = "M" + "L".join(f"{px} {py}" for px, py in points)
            parts.append(
                f'<path d="{path}" fill="none" stroke="#455a64" stroke-width="1.6" marker-end="url(#tip)"/>\n'
            )
            anchor = "start" if points[0][0] == points[1][0] and len(points) == 2 else "middle"
            if label:
                parts.append(
                    f'<text x="{x}" y="{y}" font-size="12" text-anchor="{anchor}" fill="#455a64">{escape(label)}</text>\n'
                )
        parts += [self._box(box) for box in self.boxes.values()]
        return "".join([*parts, "</svg>\n"])

    @staticmethod
    def _frame(group: Box) -> str:
        return (
            f'<rect x="{group.x}" y="{group.y}" width="{group.width}" height="{group.height}" rx="10" fill="#fafafa" '
            f'stroke="#b0bec5" stroke-dasharray="6 4"/>\n'
            f'<text x="{group.x + 12}" y="{group.y + 20}" font-size="13" fill="#607d8b">{escape(group.title)}</text>\n'
        )

    @staticmethod
    def _box(box: Box) -> str:
        middle = box.x + box.width // 2
        top = box.y + box.height // 2 - 8 * len(box.lines) + 5
        texts = [
            f'<text x="{middle}" y="{top}" font-size="15" font-weight="600" text-anchor="middle" fill="#212121">'
            f"{escape(box.title)}</text>\n"
        ]
        texts += [
            f'<text x="{middle}" y="{top + 18 + 16 * i}" font-size="12" text-anchor="middle" fill="#546e7a">{escape(line)}</text>\n'
            for i, line in enumerate(box.lines)
        ]
        return (
            f'<rect x="{box.x}" y="{box.y}" width="{box.width}" height="{box.height}" rx="8" fill="{FILLS[box.kind]}" '
            f'stroke="{STROKES[box.kind]}" stroke-width="1.4"/>\n' + "".join(texts)
        )


def session() -> Diagram:
    """Draw what a session does, from the model to the receipt."""
    d = Diagram(
        980, 380, "A session: model and policy are matched with engines; the plan is compared with evidence."
    )
    d.box("model", 20, 45, 160, 70, "data", "Model", "ONNX, PyTorch,", "OpenVINO IR")
    d.box("policy", 20, 210, 160, 70, "data", "Policy", "file, arguments,", "environment")
    d.group(240, 20, 270, 275, "selection")
    d.box("offer", 265, 50, 220, 60, "step", "Query engines", "supported, or a reason")
    d.box("choose", 265, 140, 220, 50, "step", "Choose", "named, preferred or measured")
    d.box("plan", 265, 220, 220, 60, "result", "Plan", "what will run, and why")
    d.group(570, 20, 390, 230, "execution")
    d.box("build", 595, 50, 150, 60, "step", "Build", "vendor or native")
    d.box("store", 790, 50, 150, 60, "file", "Store", "built artifacts")
    d.box("run", 595, 150, 150, 70, "step", "Run", "NumPy, PyTorch,", "DLPack")
    d.box("out", 790, 150, 150, 70, "data", "Outputs", "same kind as", "the inputs")
    d.box("evidence", 595, 322, 150, 50, "step", "Evidence", "from the engine")
    d.box("receipt", 265, 325, 220, 45, "result", "Receipt: what did run")
    d.right("model", "offer")
    d.right("policy", "choose")
    d.down("offer", "choose")
    d.down("choose", "plan")
    d.right("plan", "build")
    d.right("build", "store")
    d.down("build", "run")
    d.right("run", "out")
    d.down("run", "evidence")
    d.down("plan", "receipt", "compare")
    e, r = d.boxes["evidence"], d.boxes["receipt"]
    d.arrows.append(([(e.x, 347), (r.x + r.width, 347)], "", (0, 0)))
    return d


def compiler() -> Diagram:
    """Draw the native engine, from a model to outputs."""
    d = Diagram(
        980,
        330,
        "The native engine: a compiler that needs no device, a file, and an executor that needs no compiler.",
    )
    d.box("model", 20, 60, 130, 60, "data", "Model", "ONNX, PyTorch")
    d.group(180, 20, 780, 130, "compiler: needs no device")
    d.box("graph", 200, 60, 110, 60, "data", "Graph", "typed IR")
    d.box("passes", 345, 60, 120, 60, "step", "Passes", "rewrite, fuse")
    d.box("kernels", 500, 60, 130, 60, "step", "Kernels", "policy chooses")
    d.box("memory", 665, 60, 130, 60, "step", "Memory plan", "one arena")
    d.box("code", 830, 60, 115, 60, "step", "Codegen", "C++, CUDA C++")
    d.box("program", 800, 215, 145, 70, "file", "Program", ".npubin file, with", "code and weights")
    d.group(180, 175, 580, 130, "runtime: needs no compiler, no PyTorch, no ONNX")
    d.box("check", 595, 215, 145, 70, "step", "Load", "digests and", "bounds checked")
    d.box("exec", 400, 215, 145, 70, "step", "Executor", "CPU threads or", "CUDA streams")
    d.box("out", 205, 215, 145, 70, "data", "Outputs", "and the kernels", "that ran")
    for a, b in (
        ("model", "graph"),
        ("graph", "passes"),
        ("passes", "kernels"),
        ("kernels", "memory"),
        ("memory", "code"),
    ):
        d.right(a, b)
    d.down("code", "program")
    for a, b in (("program", "check"), ("check", "exec"), ("exec", "out")):
        left, right = d.boxes[b], d.boxes[a]
        d.arrows.append(([(right.x, 250), (left.x + left.width, 250)], "", (0, 0)))
    return d


def partitions() -> Diagram:
    """Draw the model of the page about partitions: four regions on two engines."""
    d = Diagram(
        980, 150, "One model in four regions on two engines: arrays are handed over at each boundary."
    )
    d.box("x", 15, 65, 80, 50, "data", "Inputs")
    names = ["x"]
    for i, (engine, op) in enumerate([("native", "linear"), ("onnxruntime", "softmax")] * 2):
        d.group(125 + 190 * i, 20, 160, 115, f"r{i}: {engine}")
        d.box(op + str(i), 145 + 190 * i, 65, 120, 50, "step" if i % 2 else "result", op)
        names.append(op + str(i))
    d.box("y", 890, 65, 80, 50, "data", "Outputs")
    for start, end in pairwise([*names, "y"]):
        d.right(start, end)
    return d


DIAGRAMS = {"session": session, "native-engine": compiler, "partitions": partitions}

if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, draw in DIAGRAMS.items():
        (FOLDER / f"{name}.svg").write_text(draw().svg(), encoding="utf-8")
    print(f"drew {len(DIAGRAMS)} diagrams")
