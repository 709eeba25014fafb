"""Options that several commands share. Each is defined once; a group of them is a dataclass, which ``command`` expands.

The module also parses the values with a syntax of their own, such as ``NAME=SIZE`` and ``0.5,0.5,0.5``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from ..engines import ENGINES, lookup

if TYPE_CHECKING:
    from ..workbench.inputs import ImageRecipe, Inputs
    from ..workbench.session_options import SessionOptions

__all__ = [
    "FILES_OF_FORMATS",
    "AsJson",
    "CacheDir",
    "Device",
    "EngineFlags",
    "EngineListFlags",
    "Html",
    "ImageLayout",
    "ImageMean",
    "ImageRange",
    "ImageSize",
    "ImageStd",
    "InputFlags",
    "Model",
    "Policy",
    "Precision",
    "RunTimeout",
    "SessionFlags",
    "Shape",
    "Threads",
    "Times",
    "Tolerance",
    "Tune",
    "UntunedSessionFlags",
    "Verbose",
    "engine_list",
    "parse_numbers",
    "parse_seconds",
    "parse_sizes",
    "session_options",
]

_RUN, _IN = "Engine and session", "Inputs"

FILES_OF_FORMATS = {
    "onnx": "an ONNX model (.onnx)",
    "openvino-ir": "an OpenVINO model (.xml)",
    "tensorrt-plan": "a TensorRT engine (.engine, .plan)",
    "program": "a compiled program (.npubin)",
}
"""The model formats of engines that are files, as help texts name them."""


def _model_files() -> str:
    """Return the kinds of model files that the built-in engines read, as one clause."""
    formats = dict.fromkeys(f for name in ENGINES for f in lookup(name).formats)
    *first, last = (FILES_OF_FORMATS[f] for f in formats if f in FILES_OF_FORMATS)
    text = f"{', '.join(first)} or {last}."
    return text[0].upper() + text[1:]


# ── single options ──

Model: TypeAlias = Annotated[str, typer.Argument(metavar="MODEL", help=_model_files())]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
Html: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--html",
        metavar="FILE.html",
        help="Also write one page with graph, timeline, roofline plot and tables. It loads nothing.",
    ),
]
Verbose: TypeAlias = Annotated[
    bool, typer.Option("--verbose", "-v", help="Show paths, full reasons and advice.")
]
Device: TypeAlias = Annotated[
    str | None,
    typer.Option("--device", "-d", help="Device: cpu, cuda:0, gpu, npu or auto.", rich_help_panel=_RUN),
]
Policy: TypeAlias = Annotated[
    Path | None,
    typer.Option("--policy", metavar="FILE", help="Policy file (YAML or JSON).", rich_help_panel=_RUN),
]
Precision: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--precision",
        help="Required precision: float32, float16, bfloat16 or int8. Fail if the engine does not support it.",
        rich_help_panel=_RUN,
    ),
]
Threads: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--threads", min=1, help="Number of CPU threads. Default: all usable cores.", rich_help_panel=_RUN
    ),
]
CacheDir: TypeAlias = Annotated[
    Path | None,
    typer.Option("--cache-dir", help="Folder of the store. Default: XPU_CACHE_DIR.", rich_help_panel=_RUN),
]
CompileTimeout: TypeAlias = Annotated[
    float | None,
    typer.Option(
        "--compile-timeout",
        metavar="SECONDS",
        help="Stop compiling after this time; then try the next fallback or fail.",
        rich_help_panel=_RUN,
    ),
]
Tune: TypeAlias = Annotated[
    float | None,
    typer.Option(
        "--tune",
        min=0,
        metavar="SECONDS",
        help="Measure the kernels of each call within this time when a native program is built, and keep them in the store. 0: measure nothing.",
        rich_help_panel=_RUN,
    ),
]
RunTimeout: TypeAlias = Annotated[
    float | None,
    typer.Option(
        "--run-timeout", metavar="SECONDS", help="Stop a run after this time and fail.", rich_help_panel=_RUN
    ),
]
Shape: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--shape", metavar="NAME=SIZE", help="Size of a symbolic dimension. Repeatable.", rich_help_panel=_IN
    ),
]
Times: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--times",
        metavar="TIMES.json",
        help="Measured kernel times (xpu tune): choose kernels by them and predict the time of a run. No device is needed.",
    ),
]
Tolerance: TypeAlias = Annotated[
    float | None,
    typer.Option(
        "--tolerance", min=0, help="Largest allowed max|d|/max|ref| of an output. Default: by precision."
    ),
]


# ── groups of options ──


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFlags:
    """The engine and the device of one session."""

    engine: Annotated[
        str | None,
        typer.Option(
            "--engine",
            "-e",
            help=f"Engine: {', '.join(ENGINES)} or auto (the fastest one).",
            rich_help_panel=_RUN,
        ),
    ] = None
    device: Device = None
    allow_fallback: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-fallback",
            metavar="DEVICE",
            help="Device to fall back to, tried in order. Repeatable.",
            rich_help_panel=_RUN,
        ),
    ] = None
    fp16: Annotated[
        bool,
        typer.Option(
            "--fp16",
            help="Use float16 where the engine supports it; otherwise warn.",
            rich_help_panel=_RUN,
        ),
    ] = False
    strict: Annotated[
        bool | None,
        typer.Option(
            "--strict/--no-strict",
            help="Fail if anything runs differently from the plan.",
            rich_help_panel=_RUN,
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineListFlags:
    """The engines that are compared, and the device of all of them."""

    engines: Annotated[
        str,
        typer.Option(
            "--engines",
            "-e",
            metavar="all|A,B",
            help=f"Engines, separated by commas ({', '.join(ENGINES)}), or all.",
            rich_help_panel=_RUN,
        ),
    ] = "all"
    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            "-d",
            help="Device of every engine. Default: the policy's device, else cpu.",
            rich_help_panel=_RUN,
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UntunedSessionFlags:
    """Options of every session, whichever engine runs it, but --tune."""

    policy: Policy = None
    precision: Precision = None
    threads: Threads = None
    cache_dir: CacheDir = None
    compile_timeout: CompileTimeout = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionFlags(UntunedSessionFlags):
    """Options of every session that may measure kernels when it is built."""

    tune: Tune = None


ImageSize = Annotated[
    str | None,
    typer.Option(
        "--image-size",
        metavar="N|HxW",
        help="Resize images to this size. Default: the model's size.",
        rich_help_panel=_IN,
    ),
]
ImageMean = Annotated[
    str,
    typer.Option(
        "--image-mean",
        metavar="M[,M,M]",
        help="Mean to subtract from pixels, after --image-range.",
        rich_help_panel=_IN,
    ),
]
ImageStd = Annotated[
    str,
    typer.Option(
        "--image-std",
        metavar="S[,S,S]",
        help="Standard deviation to divide by, after the mean.",
        rich_help_panel=_IN,
    ),
]
ImageLayout = Annotated[
    str | None,
    typer.Option(
        "--image-layout",
        metavar="nchw|nhwc",
        help="Axis order of images. Default: derived from the input's shape.",
        rich_help_panel=_IN,
    ),
]
ImageRange = Annotated[
    str,
    typer.Option(
        "--image-range",
        metavar="LOW,HIGH",
        help="Values of the bytes 0 and 255.",
        rich_help_panel=_IN,
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFlags:
    """The inputs of a model: files, generated arrays, and how an image becomes a tensor."""

    files: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            "-i",
            metavar="[NAME=]FILE",
            help="A .npy, .png or .jpg file for one input, or a .npz file for all. Repeatable. Default: generated inputs.",
            rich_help_panel=_IN,
        ),
    ] = None
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed", min=0, help="Seed of generated inputs. Default without --input: 0.", rich_help_panel=_IN
        ),
    ] = None
    shape: Shape = None
    image_size: ImageSize = None
    image_mean: ImageMean = "0"
    image_std: ImageStd = "1"
    image_layout: ImageLayout = None
    image_range: ImageRange = "0,1"

    def to_inputs(self) -> Inputs:
        """Return the inputs. Raise typer.BadParameter."""
        from ..workbench.inputs import Inputs

        return Inputs(tuple(self.files or ()), self.seed, parse_sizes(self.shape), self._image_recipe())

    def _image_recipe(self) -> ImageRecipe:
        from ..workbench.inputs import ImageRecipe

        size: tuple[int, int] | None = None
        if self.image_size is not None:
            parts = self.image_size.lower().split("x")
            if not (len(parts) in (1, 2) and all(p.isdecimal() and int(p) > 0 for p in parts)):
                raise typer.BadParameter(
                    f"write one number, or HEIGHTxWIDTH; got {self.image_size!r}", param_hint="--image-size"
                )
            size = (int(parts[0]), int(parts[-1]))
        layout = None if self.image_layout is None else self.image_layout.lower()
        if layout not in (None, "nchw", "nhwc"):
            raise typer.BadParameter(
                f"must be nchw or nhwc; got {self.image_layout!r}", param_hint="--image-layout"
            )
        std = parse_numbers(self.image_std, "--image-std", (1, 3))
        if 0.0 in std:
            raise typer.BadParameter("must not be zero", param_hint="--image-std")
        low, high = parse_numbers(self.image_range, "--image-range", (2,))
        mean = parse_numbers(self.image_mean, "--image-mean", (1, 3))
        return ImageRecipe(size, mean, std, layout, (low, high))


def session_options(
    session: UntunedSessionFlags,
    *,
    engine: EngineFlags | None = None,
    device: str | None = None,
    run_timeout: float | None = None,
) -> SessionOptions:
    """Return the options of a session. ``device`` is used where no ``engine`` is given."""
    from ..workbench.session_options import SessionOptions

    flags = engine or EngineFlags(device=device)
    return SessionOptions(
        engine=flags.engine,
        device=flags.device,
        policy=session.policy,
        fp16=flags.fp16,
        precision=session.precision,
        strict=flags.strict,
        threads=session.threads,
        cache_dir=session.cache_dir,
        allow_fallback=tuple(d for text in flags.allow_fallback or () for d in text.split(",")),
        compile_timeout_s=session.compile_timeout,
        run_timeout_s=run_timeout,
        tune_s=session.tune if isinstance(session, SessionFlags) else None,
    )


# ── values ──


_MAX_SIZE = 2**40  # as in fixed_shapes of a policy


def parse_sizes(values: Sequence[str] | None, option: str = "--shape") -> dict[str, int]:
    """Parse ``["n=2", "seq=128"]`` into ``{"n": 2, "seq": 128}``. Raise typer.BadParameter."""
    sizes: dict[str, int] = {}
    for text in values or ():
        name, equals, size = text.rpartition("=")
        if not (equals and name and size.isdecimal()):
            raise typer.BadParameter(f"write NAME=SIZE with a whole number; got {text!r}", param_hint=option)
        if len(size.lstrip("0")) > len(str(_MAX_SIZE)) or int(size) > _MAX_SIZE:
            text = f"a size is at most {_MAX_SIZE}; got {text[:80]!r}"
            raise typer.BadParameter(text, param_hint=option)
        if sizes.setdefault(name, int(size)) != int(size):
            raise typer.BadParameter(f"{name!r} is given twice; got {text!r}", param_hint=option)
    return sizes


_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


def parse_seconds(text: str, option: str) -> float:
    """Parse ``"60s"``, ``"5m"``, ``"1h"`` or ``"90"`` into seconds. Raise typer.BadParameter."""
    number = text.rstrip("smh")
    try:
        seconds = float(number) * _UNITS[text[len(number) :]]
    except (ValueError, KeyError):
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise typer.BadParameter(f"write a time such as 60s, 5m or 1h; got {text!r}", param_hint=option)
    return seconds


def parse_numbers(text: str, option: str, counts: Sequence[int]) -> tuple[float, ...]:
    """Parse ``"0.5,0.5,0.5"`` into floats; their number must be one of ``counts``. Raise typer.BadParameter."""
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        values = ()
    if len(values) not in counts or not all(abs(v) < float("inf") for v in values):
        allowed = " or ".join(map(str, counts))
        raise typer.BadParameter(
            f"write {allowed} numbers separated by commas; got {text!r}", param_hint=option
        )
    return values


def engine_list(text: str) -> tuple[tuple[str, ...], bool]:
    """Parse ``--engines`` into names and whether the user named them. Named engines must be available. Raise typer.BadParameter."""
    if text.strip().lower() == "all":
        from ..engines import engine_names

        return engine_names(), False
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not names:
        raise typer.BadParameter("name engines separated by commas, or write all", param_hint="--engines")
    return names, True
