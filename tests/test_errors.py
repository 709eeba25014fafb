"""Every error says who, what, got, do; has an exit code that scripts can branch on; and crosses processes."""

from __future__ import annotations

import json
import pickle

import pytest

from xpuruntime import errors
from xpuruntime.decisions import Decision
from xpuruntime.errors import UnavailableError, XpuError

CLASSES = [getattr(errors, name) for name in errors.__all__]

# What scripts branch on. docs/reference/command-line.md shows the same table; one code per kind of thing that went wrong.
EXIT_CODES = {
    3: {"ModelError", "IrError"},
    4: {"InputError"},
    5: {"PolicyError"},
    6: {
        "UnavailableError",
        "EngineUnavailable",
        "DeviceUnavailable",
        "PrecisionUnavailable",
        "KernelUnavailable",
        "LockError",
    },
    7: {"StrictError"},
    8: {
        "BuildError",
        "BuildTimeout",
        "KernelRefused",
        "OutOfMemory",
        "PluginError",
        "RunError",
        "RunTimeout",
        "RankLost",
        "RunCancelled",
        "WrongResult",
    },
    9: {"StoreError", "FormatError"},
    70: {"XpuError", "InternalError"},
}


def test_exit_codes_are_those_that_scripts_rely_on() -> None:
    seen: dict[int, set[str]] = {}
    for cls in CLASSES:
        seen.setdefault(cls.exit_code, set()).add(cls.__name__)
    assert seen == EXIT_CODES


def test_every_error_of_the_module_is_public_and_one_tree() -> None:
    defined = {n for n, v in vars(errors).items() if isinstance(v, type) and issubclass(v, Exception)}
    assert defined == set(errors.__all__)
    assert all(issubclass(c, XpuError) for c in CLASSES)


def test_the_tree_at_the_top_of_the_file_is_the_tree() -> None:
    drawn = {line.split("──")[1].split()[0] for line in (errors.__doc__ or "").splitlines() if "──" in line}
    assert drawn | {"XpuError"} == set(errors.__all__)


@pytest.mark.parametrize("cls", CLASSES)
def test_an_error_says_who_what_got_do(cls: type[XpuError]) -> None:
    error = cls('session("m.onnx")', "takes 2 inputs", got=3, do="Give two.")
    assert str(error) == '[session("m.onnx")] takes 2 inputs; got 3. Give two.'
    assert (error.who, error.what, error.got, error.do) == (
        'session("m.onnx")',
        "takes 2 inputs",
        3,
        "Give two.",
    )
    data = json.loads(json.dumps(error.to_json()))
    assert {k: data[k] for k in ("error", "who", "what", "got", "do", "exit_code")} == {
        "error": cls.__name__,
        "who": 'session("m.onnx")',
        "what": "takes 2 inputs",
        "got": "3",
        "do": "Give two.",
        "exit_code": cls.exit_code,
    }


@pytest.mark.parametrize(
    ("got", "do", "text"),
    [
        (None, "", "[w] broke."),
        (0, "", "[w] broke; got 0."),
        ("what?", "", "[w] broke; got what?"),
        ("a sentence.", "Go.", "[w] broke; got a sentence. Go."),
    ],
)
def test_punctuation(got: object, do: str, text: str) -> None:
    assert str(XpuError("w", "broke", got=got, do=do)) == text


@pytest.mark.parametrize("cls", CLASSES)
def test_an_error_crosses_processes(cls: type[XpuError]) -> None:
    error = cls("w", "broke", got="x", do="Mend it.")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is cls
    assert str(again) == str(error)


def test_unavailable_carries_its_decision() -> None:
    decision = Decision("engine", "m.onnx", None)
    error = pickle.loads(pickle.dumps(UnavailableError("w", "no engine", decision=decision)))
    assert error.decision == decision
    assert error.to_json()["decision"] == decision.to_json()
    assert "decision" not in UnavailableError("w", "no engine").to_json()
