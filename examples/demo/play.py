"""The demo's run: build the models, run them on every engine, compare the engines with float64, and measure."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

import xpuruntime as xrt
from examples.zoo import DATA, MODELS, ZooModel, read_page
from xpuruntime.inference.self_check.conditioning import MARGIN, WIDEST, sensitivity, widened
from xpuruntime.numerics import compare, compare_all, tolerance_for
from xpuruntime.runtime.device import cpu
from xpuruntime.workbench.bench.engines import bench
from xpuruntime.workbench.compare.engines import PairComparison
from xpuruntime.workbench.engine_sessions import EngineSession, open_engines
from xpuruntime.workbench.inputs import Inputs, save_outputs
from xpuruntime.workbench.session_options import SessionOptions

from .reference import exact_outputs
from .story import Chapter, Question, Reading, Story

Say = Callable[[str], None]
Outputs = dict[str, np.ndarray]

# (name, file, letters that may differ): the drawn page, and its rotated, noisy scan.
PAGES = (("invoice", "invoice.png", 0), ("scan", "invoice_scan.jpg", 1))


def play(
    engines: Sequence[str],
    *,
    models: Sequence[str] = tuple(MODELS),
    named: bool,
    zoo: Path,
    out: Path,
    device: str = "cpu",
    seconds: float = 3.0,
    control: bool = True,
    say: Say = lambda _: None,
) -> Story:
    """Run the whole demo. Raises ZooError, and what sessions raise.

    named: every engine must be available.
    The pages are read if both OCR models are among ``models``.
    """
    start = time.perf_counter()
    options = SessionOptions(device=device, cache_dir=out / "store", threads=cpu().usable_cores)
    chapters = []
    for model in (MODELS[name] for name in models):
        say(f"{model.title}: building {model.name}.onnx, once")
        path = model.onnx_path(zoo)
        chapters.append(_chapter(model, path, engines, named, options, out, seconds, control, say))
    present = {
        engine: receipt.plan.regions[0].engine_version
        for chapter in chapters
        for engine, receipt in chapter.receipts.items()
    }
    say("reading the invoice and its scan, where both models of pages are asked for")
    readings = _readings(chapters, present, options)
    first = chapters[0].path
    say("asking for what cannot be had, and for the fastest")
    return Story(
        engines=present,
        machine=cpu().model,
        threads=options.threads or 1,
        chapters=tuple(chapters),
        readings=readings,
        unavailable=_ask(first, out, device="npu"),
        auto=_ask(first, out, engine="auto"),
        seconds=time.perf_counter() - start,
    )


def _chapter(
    model: ZooModel,
    path: Path,
    engines: Sequence[str],
    named: bool,
    options: SessionOptions,
    out: Path,
    seconds: float,
    control: bool,
    say: Say,
) -> Chapter:
    samples = model.samples()
    feeds = [model.inputs(sample) for sample in samples]
    raw: dict[str, list[Outputs]] = {}
    receipts = {}
    with open_engines(
        path, engines, options, named=named, progress=lambda text: say(f"{model.title}: {text}")
    ) as field:
        for contender in tuple(field.opened):
            say(f"{model.title}: {len(samples)} inputs on {contender.name}")
            try:
                raw[contender.name] = [contender.session.run(feed) for feed in feeds]
            except xrt.RunError as error:
                field.drop(contender, error, named)
                continue
            receipts[contender.name] = contender.session.receipt()
        say(f"{model.title}: in float64, to judge them by")
        pairs, reasons = _pairs([c for c in field.opened if c.name in raw], raw, path, feeds)
        refused = tuple(field.rejected)
    answers_by_sample = tuple(
        (sample, {engine: model.interpret(outputs[k], sample) for engine, outputs in raw.items()})
        for k, sample in enumerate(samples)
    )
    inputs = out / "inputs" / f"{model.name}.npz"
    inputs.parent.mkdir(parents=True, exist_ok=True)
    save_outputs(inputs, feeds[0])
    speed = bench(
        path,
        tuple(raw),
        options=options,
        inputs=Inputs(files=(str(inputs),)),
        seconds=seconds,
        control=control,
        progress=lambda text: say(f"{model.title}: {text}"),
    )
    return Chapter(model, path, answers_by_sample, receipts, pairs, speed, refused, reasons)


def _pairs(
    contenders: Sequence[EngineSession], raw: dict[str, list[Outputs]], path: Path, feeds: Sequence[Outputs]
) -> tuple[tuple[PairComparison, ...], dict[str, str]]:
    """Compare every engine with float64 on the sample on which the engines differ most. Also return the reason of each tolerance.

    The tolerance of an output is that of the engine's precision. It is wider if the model amplifies rounding: ``MARGIN`` times the error of
    float32 itself, or ``MARGIN`` times the change of the output when the last bits of the inputs change, on the least sensitive engine.
    """
    if not contenders:
        return (), {}
    sample = max(range(len(feeds)), key=lambda k: _spread([raw[c.name][k] for c in contenders]))
    exact = exact_outputs(path, feeds[sample])
    sensitivities = [_sensitivity(c, feeds[sample], raw[c.name][sample]) for c in contenders]
    sensitivity = {name: min(by_output[name] for by_output in sensitivities) for name in exact.rounding}
    shifts = {name: max(float32_error, sensitivity[name]) for name, float32_error in exact.rounding.items()}
    pairs, reasons = [], {}
    for contender in contenders:
        base = tolerance_for(contender.precision)
        limits = widened(base, shifts)
        for name, limit in limits.items():
            reasons[f"{contender.name} {name}"] = _reason(
                limit, base, exact.rounding[name], sensitivity[name], contender.precision.value
            )
        outputs = raw[contender.name][sample].items()
        by_output = tuple(compare(name, array, exact.outputs[name], limits[name]) for name, array in outputs)
        pairs.append(PairComparison(contender.name, "float64", base, by_output))
    return tuple(pairs), reasons


def _reason(limit: float, base: float, rounding: float, moved: float, precision: str) -> str:
    """Return the reason of an output's tolerance."""
    if limit <= base:
        return f"usual for {precision}"
    if limit >= WIDEST * base:
        return f"{WIDEST:g} times the usual for {precision}, the most that is allowed"
    if rounding >= moved:
        return f"{MARGIN:g} times what {precision} itself is off here"
    return f"{MARGIN:g} times the shift by the inputs' last bits"


def _sensitivity(contender: EngineSession, feeds: Outputs, outputs: Outputs) -> dict[str, float]:
    return sensitivity(contender.outputs, list(outputs), feeds, list(outputs.values()))


def _spread(outputs: Sequence[Outputs]) -> float:
    """Return the largest max|d|/max|ref| of any engine against the first."""
    first, *others = outputs
    return max(
        (
            c.max_rel
            for o in others
            for c in compare_all(list(o), list(o.values()), [first[n] for n in o], 0.0)
        ),
        default=0.0,
    )


def _readings(
    chapters: Sequence[Chapter], engines: Sequence[str], options: SessionOptions
) -> tuple[Reading, ...]:
    """Read both pages on each engine that ran both models."""
    from examples.zoo.ppocr_rec import symbols

    by_name = {c.model.name: c for c in chapters}
    if not {"ppocr-det", "ppocr-rec"} <= by_name.keys():
        return ()
    detector, recognizer = by_name["ppocr-det"], by_name["ppocr-rec"]
    texts: dict[str, dict[str, str]] = {name: {} for name, _, _ in PAGES}
    for engine in engines:
        if engine in detector.receipts and engine in recognizer.receipts:
            on = options.on(engine)
            with on.open(detector.path) as detect, on.open(recognizer.path) as recognize:
                for name, file, _ in PAGES:
                    texts[name][engine] = read_page(DATA / file, detect.run, recognize.run, symbols()).text
    truth = (DATA / "invoice.txt").read_text(encoding="utf-8").strip()
    return tuple(Reading(name, DATA / file, truth, texts[name], allowed) for name, file, allowed in PAGES)


def _ask(path: Path, out: Path, **wish: str) -> Question:
    """Open a session with these options. Return the decision, whether it succeeded or failed."""
    code = f'xrt.InferenceSession("{path.name}", {", ".join(f"{k}={v!r}" for k, v in wish.items())})'.replace(
        "'", '"'
    )
    try:
        with xrt.InferenceSession(path, cache_dir=out / "store", **wish) as session:
            decision = session.plan.decision("engine")
            assert decision is not None
            return Question(code, decision)
    except xrt.UnavailableError as error:
        if error.decision is None:
            raise
        return Question(code, error.decision, str(error))
