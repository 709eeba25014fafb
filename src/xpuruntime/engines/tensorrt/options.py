"""Options of the TensorRT engine: names of the builder's settings, checked before anything is built."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ...decisions import Reason, Support
from ...protocols import EngineRequest, ModelSource
from .api import Api, Profile

__all__ = ["TensorRtSettings", "parse", "plugin_digests", "profiles_of"]

_SWITCH = ("0", "1")
_INTEGER: tuple[str, ...] = ()
# Settings of IBuilderConfig that are integers -> the allowed texts; an empty tuple: any non-negative integer.
_SETTINGS: Mapping[str, tuple[str, ...]] = {
    "builder_optimization_level": ("0", "1", "2", "3", "4", "5"),
    "avg_timing_iterations": _INTEGER,
    "max_aux_streams": _INTEGER,
}
_FLAGS: Mapping[str, str] = {  # option -> builder flag
    "sparse_weights": "SPARSE_WEIGHTS",
    "version_compatible": "VERSION_COMPATIBLE",
    "direct_io": "DIRECT_IO",
}
_OWN = ("workspace_bytes", "tactic_sources", "tf32", "timing_cache", "profiles", "plugins")


@dataclass(frozen=True, slots=True)
class TensorRtSettings:
    """A request as TensorRT's settings.

    profiles: for each profile, minimum, optimum and maximum by symbol. plugins: paths of plug-in libraries.
    """

    settings: Mapping[str, int]
    flags: tuple[str, ...]
    workspace: int | None
    sources: tuple[str, ...] | None
    tf32: bool
    timing_cache: bool
    profiles: tuple[Mapping[str, tuple[int, int, int]], ...]
    plugins: tuple[str, ...]


def parse(request: EngineRequest, api: Api) -> TensorRtSettings | Support:
    """Return the request's settings, or the reason why an option or a value is not supported."""
    options = request.options
    known = (*_OWN, *_SETTINGS, *_FLAGS)
    for key, value in options.items():
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            do = (f"Did you mean {near[0]!r}? " if near else "") + f"Options are {', '.join(known)}."
            return Support.no(Reason.OPTION_UNKNOWN, f"TensorRT has no option {key!r} here", do=do)
        allowed = _SWITCH if key in (*_FLAGS, "tf32", "timing_cache") else _SETTINGS.get(key)
        if key == "workspace_bytes":
            allowed = _INTEGER
        if allowed is not None and (value not in allowed if allowed else not value.isdecimal()):
            values = f"one of {', '.join(allowed)}" if allowed else "a non-negative integer"
            return Support.no(
                Reason.OPTION_UNKNOWN, f"TensorRT option {key!r} cannot be {value!r}", do=f"Use {values}."
            )
    sources = _sources(options.get("tactic_sources"), api)
    profiles = _profiles(options.get("profiles", ""))
    plugins = tuple(p for p in options.get("plugins", "").split(":") if p)
    for answer in (sources, profiles):
        if isinstance(answer, Support):
            return answer
    for path in plugins:
        if not Path(path).is_file():
            text = f"the plug-in library {path!r} does not exist"
            return Support.no(Reason.OPTION_UNKNOWN, text, do="Give paths, separated by ':'.")
    assert not isinstance(sources, Support)
    assert not isinstance(profiles, Support)
    settings = {k: int(options[k]) for k in _SETTINGS if k in options}
    if request.optimization < 3:
        settings.setdefault("builder_optimization_level", request.optimization)
    return TensorRtSettings(
        settings,
        tuple(flag for key, flag in _FLAGS.items() if options.get(key) == "1"),
        int(options["workspace_bytes"]) if "workspace_bytes" in options else None,
        sources,
        options.get("tf32") == "1",
        options.get("timing_cache", "1") == "1",
        profiles,
        plugins,
    )


def _sources(text: str | None, api: Api) -> tuple[str, ...] | Support | None:
    """Return tactic sources. A policy's words are joined by semicolons (``vendor_options``)."""
    if text is None:
        return None
    names = tuple(n.strip() for n in text.replace(";", ",").split(",") if n.strip())
    for name in names:
        if name not in api.tactic_sources():
            return Support.no(
                Reason.OPTION_UNKNOWN,
                f"TensorRT {api.version} has no tactic source {name!r}",
                do=f"Use some of {', '.join(api.tactic_sources())}.",
            )
    return names


def _profiles(text: str) -> tuple[Mapping[str, tuple[int, int, int]], ...] | Support:
    """Parse ``batch=1:8:32 seq=1:128:512; batch=64:64:64 seq=1:128:512``: minimum, optimum and maximum of each symbol, by profile."""
    profiles = []
    for part in filter(None, map(str.strip, text.split(";"))):
        profile = {}
        for word in part.split():
            name, _, sizes = word.partition("=")
            numbers = sizes.split(":")
            fits = name and len(numbers) == 3 and all(n.isdecimal() for n in numbers)
            if not fits or not int(numbers[0]) <= int(numbers[1]) <= int(numbers[2]):
                return Support.no(
                    Reason.OPTION_UNKNOWN,
                    f"TensorRT option 'profiles' cannot have {word!r}",
                    do="Write SYMBOL=MIN:OPT:MAX, as in batch=1:8:32; a semicolon begins another profile.",
                )
            profile[name] = (int(numbers[0]), int(numbers[1]), int(numbers[2]))
        profiles.append(profile)
    return tuple(profiles)


def profiles_of(model: ModelSource, settings: TensorRtSettings) -> tuple[Profile, ...] | Support:
    """Return the profiles by input; none for a model with static shapes. Each symbol of the model needs its sizes."""
    symbols = {str(d) for s in model.inputs for d in s.shape if not isinstance(d, int)}
    if not symbols:
        return ()
    example = " ".join(f"{s}=1:1:8" for s in sorted(symbols))
    if not settings.profiles:
        return Support.no(
            Reason.SHAPE_UNSUPPORTED,
            f"TensorRT needs the smallest, usual and largest size of {', '.join(sorted(symbols))}",
            do=f"Set the engine option profiles={example!r}, or fix the shapes with fixed_shapes.",
        )
    profiles = []
    for sizes in settings.profiles:
        if missing := sorted(symbols ^ sizes.keys()):
            return Support.no(
                Reason.SHAPE_UNSUPPORTED,
                f"the profile {dict(sizes)} and the symbols of the model differ in {', '.join(missing)}",
                do=f"Give each symbol once: profiles={example!r}.",
            )
        profiles.append(
            {
                s.name: tuple(
                    tuple(d if isinstance(d, int) else sizes[str(d)][i] for d in s.shape) for i in range(3)
                )
                for s in model.inputs
            }
        )
    return tuple(profiles)  # type: ignore[arg-type]


def plugin_digests(settings: TensorRtSettings) -> dict[str, str]:
    """Return the SHA-256 of each plug-in library: an engine is valid only for the same code."""
    return {
        f"plugin.{Path(p).name}": hashlib.sha256(Path(p).read_bytes()).hexdigest() for p in settings.plugins
    }
