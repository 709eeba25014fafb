"""Basic Pitch: which notes sound in a piece of audio?

Rachel M. Bittner and others, "A Lightweight Instrument-Agnostic Model for Polyphonic Note Transcription and Multipitch Estimation", ICASSP 2022.
The model sees two seconds at 22,050 Hz: a constant-Q transform written as many short convolutions, the same spectrum shifted to the places
of its harmonics, and a small convolutional net. No engine is the fastest at all of these parts (``benchmarks/mixed_plans.py``).

A sample is a chord of plucked strings, drawn here: its right answer is what was drawn.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from .base import Answer, Arrays, Check, Sample, ZooModel, package_file, shipped

PACKAGES = {"basic-pitch": "0.4.0"}
FILE = "basic_pitch/saved_models/icassp_2022/nmp.onnx"
SHA256 = "2c3c1d144bfa61ad236e92e169c13535c880469a12a047d4e73451f2c059a0ec"

RATE = 22_050  # samples a second
LENGTH = 43_844  # samples that the model sees at once
STRUCK = 0.25  # seconds of silence before the chord
HEARD = slice(30, 100)  # frames of 86 a second in which the chord sounds
ENOUGH = 0.5  # mean activation of a note that is said to sound
LOWEST = 21  # MIDI number of the model's first note, A0
NAMES = ("C", "C#", "D", "D#", "E", "F", "F#", "G", "G#", "A", "A#", "B")

SAMPLES = tuple(
    Sample(name, notes, lines=tuple(notes.split()))
    for name, notes in (("C major", "C4 E4 G4"), ("A minor seventh", "A3 C4 E4 G4"), ("one string", "A4"))
)


def write(path: Path) -> Check:
    """Copy the file that the package ships."""
    return shipped(package_file(PACKAGES, FILE), SHA256, path)


def hertz(note: str) -> float:
    """``A4`` is 440."""
    number = 12 * (int(note[-1]) + 1) + NAMES.index(note[:-1])
    return 440 * float(2 ** ((number - 69) / 12))


def chord(notes: tuple[str, ...]) -> np.ndarray:
    """Plucked strings, struck together: eight harmonics each, the higher the softer and the sooner gone. float32 [43844], at most 0.8."""
    t = np.arange(LENGTH) / RATE - STRUCK
    sounding, harmonic = np.maximum(t, 0), np.arange(1, 9)[:, None]
    envelope = np.exp(-sounding * (1.2 + 0.6 * harmonic)) / harmonic**1.2
    waves = sum((np.sin(2 * np.pi * harmonic * hertz(n) * sounding) * envelope).sum(axis=0) for n in notes)
    return np.asarray(0.8 * waves / np.abs(waves).max(), np.float32)


def inputs(sample: Sample) -> dict[str, np.ndarray]:
    """Audio float32 [1, 43844, 1]."""
    return {"serving_default_input_2:0": chord(sample.lines)[None, :, None]}


def interpret(outputs: Arrays, sample: Sample) -> Answer:
    """The notes that sound on, from the lowest, and how sure the model is of each. Output ``:1`` holds notes, float32 [1, 172, 88]."""
    sure = np.asarray(outputs["StatefulPartitionedCall:1"], np.float64)[0, HEARD].mean(axis=0)
    pitches = [int(i) for i in np.flatnonzero(sure > ENOUGH)]
    names = [f"{NAMES[(i + LOWEST) % 12]}{(i + LOWEST) // 12 - 1}" for i in pitches]
    return Answer(
        " ".join(names) or "silence", tuple((n, float(sure[i])) for n, i in zip(names, pitches, strict=True))
    )


MODEL = ZooModel(
    name="basic-pitch",
    title="Basic Pitch ICASSP 2022",
    task="note transcription",
    licence="Apache-2.0",
    licence_from="the wheel's LICENSE and NOTICE files, Copyright 2022 Spotify AB",
    packages=PACKAGES,
    write=write,
    samples=lambda: SAMPLES,
    inputs=inputs,
    interpret=interpret,
)
