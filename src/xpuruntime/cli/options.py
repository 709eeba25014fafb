"""The options that verbs share, each defined once, and the small languages in them (NAME=SIZE, 1,2,3)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

if TYPE_CHECKING:
    from ..workbench.inputs import ImageRecipe, Inputs
    from ..workbench.setup import Setup

__all__ = [
    "AllowFallback",
    "AsJson",
    "CacheDir",
    "CompileTimeout",
    "Device",
    "Engine",
    "Engines",
    "Fp16",
    "ImageLayout",
    "ImageMean",
    "ImageRange",
    "ImageSize",
    "ImageStd",
    "Input",
    "Model",
    "Output",
    "Policy",
    "Precision",
    "RunTimeout",
    "Seed",
    "Shape",
    "Strict",
    "Threads",
    "engine_list",
    "image_recipe",
    "inputs",
    "numbers",
    "setup",
    "sizes",
]

_RUN, _IN = "What runs it", "Inputs"

Model: TypeAlias = Annotated[
    str, typer.Argument(metavar="MODEL", help="An .onnx file or an OpenVINO .xml file.")
]
AsJson: TypeAlias = Annotated[
    bool, typer.Option("--json", help="One JSON document on stdout, nothing else there.")
]
Output: TypeAlias = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE.npz", help="Write the outputs.")
]

Engine: TypeAlias = Annotated[
    str | None, typer.Option("--engine", "-e", help="onnxruntime, openvino or auto.", rich_help_panel=_RUN)
]
Engines: TypeAlias = Annotated[
    str, typer.Option("--engines", "-e", metavar="all|A,B", help="Engines to take.", rich_help_panel=_RUN)
]
Device: TypeAlias = Annotated[
    str | None, typer.Option("--device", "-d", help="cpu, cuda:0, gpu, npu, auto.", rich_help_panel=_RUN)
]
Policy: TypeAlias = Annotated[
    Path | None,
    typer.Option("--policy", metavar="FILE", help="Policy file, YAML or JSON.", rich_help_panel=_RUN),
]
Fp16: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--fp16", help="float16 where the engine can; else the model's own, and said.", rich_help_panel=_RUN
    ),
]
Precision: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--precision", help="float32, float16, bfloat16, int8: had, or an error.", rich_help_panel=_RUN
    ),
]
Strict: TypeAlias = Annotated[
    bool | None,
    typer.Option(
        "--strict/--no-strict", help="Anything that deviates from the plan is an error.", rich_help_panel=_RUN
    ),
]
Threads: TypeAlias = Annotated[
    int | None,
    typer.Option("--threads", min=1, help="CPU threads; default: all usable.", rich_help_panel=_RUN),
]
CacheDir: TypeAlias = Annotated[
    Path | None,
    typer.Option("--cache-dir", help="Folder of the store; default: XPU_CACHE_DIR.", rich_help_panel=_RUN),
]
AllowFallback: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-fallback",
        metavar="DEVICE",
        help="May take over, in order; repeatable.",
        rich_help_panel=_RUN,
    ),
]
CompileTimeout: TypeAlias = Annotated[
    float | None,
    typer.Option(
        "--compile-timeout",
        metavar="SECONDS",
        help="Longest time to compile; then it is ended, an error or the next fallback.",
        rich_help_panel=_RUN,
    ),
]
RunTimeout: TypeAlias = Annotated[
    float | None,
    typer.Option(
        "--run-timeout",
        metavar="SECONDS",
        help="Longest time of one run; then it is ended, and an error.",
        rich_help_panel=_RUN,
    ),
]

Input: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        "-i",
        metavar="[NAME=]FILE",
        help=".npy, .png, .jpg for one input; .npz for all; repeatable. Without: a seeded recipe.",
        rich_help_panel=_IN,
    ),
]
Seed: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--seed", min=0, help="Seed of inputs that no file gives (0 without files).", rich_help_panel=_IN
    ),
]
Shape: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--shape", metavar="NAME=SIZE", help="Size of a symbolic dim; repeatable.", rich_help_panel=_IN
    ),
]
ImageSize: TypeAlias = Annotated[
    str | None,
    typer.Option("--image-size", metavar="N|HxW", help="Default: the model's.", rich_help_panel=_IN),
]
ImageMean: TypeAlias = Annotated[
    str,
    typer.Option(
        "--image-mean", metavar="M[,M,M]", help="Subtracted after --image-range.", rich_help_panel=_IN
    ),
]
ImageStd: TypeAlias = Annotated[
    str,
    typer.Option("--image-std", metavar="S[,S,S]", help="Divided by, after the mean.", rich_help_panel=_IN),
]
ImageLayout: TypeAlias = Annotated[
    str | None,
    typer.Option("--image-layout", metavar="nchw|nhwc", help="Default: from the shape.", rich_help_panel=_IN),
]
ImageRange: TypeAlias = Annotated[
    str,
    typer.Option(
        "--image-range", metavar="LOW,HIGH", help="What bytes 0 and 255 become.", rich_help_panel=_IN
    ),
]


def sizes(given: Sequence[str] | None, option: str = "--shape") -> dict[str, int]:
    """``["n=2", "seq=128"]`` -> {"n": 2, "seq": 128}. Raises typer.BadParameter."""
    found: dict[str, int] = {}
    for text in given or ():
        name, equals, size = text.rpartition("=")
        if not (equals and name and size.isdecimal()):
            raise typer.BadParameter(f"write NAME=SIZE with a whole number; got {text!r}", param_hint=option)
        if found.setdefault(name, int(size)) != int(size):
            raise typer.BadParameter(f"{name!r} is given twice; got {text!r}", param_hint=option)
    return found


def numbers(text: str, option: str, counts: Sequence[int]) -> tuple[float, ...]:
    """``"0.5,0.5,0.5"`` -> floats, as many as one of ``counts``. Raises typer.BadParameter."""
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        values = ()
    if len(values) not in counts or not all(abs(v) < float("inf") for v in values):
        wanted = " or ".join(map(str, counts))
        raise typer.BadParameter(
            f"write {wanted} numbers with commas between; got {text!r}", param_hint=option
        )
    return values


def engine_list(text: str) -> tuple[tuple[str, ...], bool]:
    """``"all"`` -> (every engine there is, False); ``"a,b"`` -> (("a", "b"), True): named ones must be had."""
    if text.strip().lower() == "all":
        from ..engines import engine_names

        return engine_names(), False
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not names:
        raise typer.BadParameter("name engines with commas between, or say all", param_hint="--engines")
    return names, True


def setup(**given: Any) -> Setup:
    """The options of "What runs it" as one value."""
    from ..workbench.setup import Setup

    fallback = tuple(d for text in given.pop("allow_fallback", None) or () for d in text.split(","))
    return Setup(allow_fallback=fallback, **given)


def image_recipe(size: str | None, mean: str, std: str, layout: str | None, scale: str) -> ImageRecipe:
    """The --image options as one value. Raises typer.BadParameter."""
    from ..workbench.inputs import ImageRecipe

    height_width: tuple[int, int] | None = None
    if size is not None:
        parts = size.lower().split("x")
        if not (len(parts) in (1, 2) and all(p.isdecimal() and int(p) > 0 for p in parts)):
            raise typer.BadParameter(
                f"write one number, or HEIGHTxWIDTH; got {size!r}", param_hint="--image-size"
            )
        height_width = (int(parts[0]), int(parts[-1]))
    if layout is not None and layout.lower() not in ("nchw", "nhwc"):
        raise typer.BadParameter(f"is nchw or nhwc; got {layout!r}", param_hint="--image-layout")
    divisor = numbers(std, "--image-std", (1, 3))
    if 0.0 in divisor:
        raise typer.BadParameter("must not be zero", param_hint="--image-std")
    low, high = numbers(scale, "--image-range", (2,))
    means = numbers(mean, "--image-mean", (1, 3))
    return ImageRecipe(height_width, means, divisor, None if layout is None else layout.lower(), (low, high))


def inputs(
    files: Sequence[str] | None, seed: int | None, shape: Sequence[str] | None, image: ImageRecipe
) -> Inputs:
    """The options of "Inputs" as one value. Raises typer.BadParameter."""
    from ..workbench.inputs import Inputs

    return Inputs(tuple(files or ()), seed, sizes(shape), image)
