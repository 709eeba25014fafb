"""Settings and fixtures of all tests, and the sample of heavy tests that a commit draws.

A run without a seed runs every test. ``--seed WORD`` (or ``XPU_TEST_SEED=WORD``) runs a part of each test that is marked
``sampled(n)``: n of its cases, drawn by the seed; ``sampled(one_in=3)``: all of them for one of three seeds. ``commit`` means the commit's
hash, ``all`` for every case. The header of the run shows the seed, so a failure can be repeated.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import hashlib
import os
import subprocess
import sys
import types
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import settings

from xpuruntime.storage.store import Store

if TYPE_CHECKING:
    from xpuruntime.codegen.cpp.isa import IsaLevel

settings.register_profile("here", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
# The gate draws the same inputs whoever runs it: a failure of one commit is a failure everywhere. Other runs draw new ones.
settings.load_profile("ci" if os.environ.get("CI") or os.environ.get("XPU_TEST_SEED") else "here")


ONLY_PROCESSORS = {
    "test_amx_kernels.py", "test_kernel_names.py", "test_layouts.py", "test_onednn_kernels.py",
    "test_user_kernels.py", "test_errors_of_long_sums_grow_with_the_root_of_their_length",
    "test_code_tables.py", "test_sample_token.py", "test_the_demand_of_a_program_is_recorded", "test_few_rows_are_products_by_pair_and_many_are_grouped",
    "test_sums_of_narrow_floats_are_refused", "test_what_has_no_such_kernel_says_why",
    "test_memory_is_that_of_the_codes_and_only_a_policy_takes_them", "test_what_draws_is_refused",
}  # fmt: skip
"""Of tests/kernels, files and tests: what only processors have, or only our own code promises."""


ROOT = Path(__file__).resolve().parents[1]
SEED = "XPU_TEST_SEED"
EVERYTHING = "all"
LEFT_OUT = pytest.StashKey[int]()
WHOLE_SUITE = 3600  # seconds for a test that runs a third-party suite, or works on a GPU
QUICK = "-Og"
"""In a sampled run, how generated C++ is optimized for tests of ``QUICK_FOLDERS``: half of the compiler's time for -O2."""
QUICK_FOLDERS = frozenset({"llm", "pytorch"})
"""Folders of tests that are not about kernels, or of which tests/kernels holds the kernels. Processes that these tests start optimize as a user's do."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--seed",
        default="",
        help=f"draw the cases of sampled tests by this word; default: ${SEED}, or all cases",
    )
    parser.addoption(
        "--own-level",
        action="store_true",
        help="only tests that depend on the processor's level (XPU_TEST_LEVEL): without those that name the level of their code",
    )


def seed_of(word: str) -> str:
    """Return the seed that a word means."""
    if word != "commit":
        return word or EVERYTHING
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return done.stdout.strip()
    command = [sys.executable, "scripts/digest", "src", "cpp", "tests"]  # an archive without Git
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def drawn(names: list[str], count: int, seed: str) -> set[str]:
    """Return ``count`` of the names, drawn by a seed. Each name has a place of its own, so that another name moves none."""
    place = {name: hashlib.sha256(f"{seed}\0{name}".encode()).digest() for name in names}
    return set(sorted(names, key=place.__getitem__)[:count])


def is_drawn(name: str, one_in: int, seed: str) -> bool:
    """Return whether a seed draws this name, which one of ``one_in`` seeds does."""
    return int.from_bytes(hashlib.sha256(f"{seed}\0{name}".encode()).digest()) % one_in == 0


def pytest_report_header(config: pytest.Config) -> str:
    seed = os.environ[SEED]
    return "sampled tests: every case" if seed == EVERYTHING else f"sampled tests: repeat with --seed {seed}"


def pytest_report_collectionfinish(config: pytest.Config) -> str:
    return f"sampled tests: {config.stash[LEFT_OUT]} cases left out" if LEFT_OUT in config.stash else ""


def pytest_configure(config: pytest.Config) -> None:
    """``XPU_TEST_LEVEL=x86-64-v2 pytest ...``: as on a processor of that level, which must not be above this machine's.
    ``XPU_TEST_DEVICE=cuda:0 pytest tests/native tests/kernels``: native tests on that device; ``XPU_TEST_TARGET`` is its code, where it does not say."""
    # What is imported while tests are collected lives to the end: collections of garbage that walk it took a fifteenth of the gate.
    gc.disable()
    # Workers inherit the seed, so that all of them draw the same cases.
    os.environ[SEED] = seed_of(config.getoption("seed") or os.environ.get(SEED, ""))
    where = os.environ.get("XPU_TEST_DEVICE", "")
    if where:
        from support.device_under_test import name_device

        name_device(where, os.environ.get("XPU_TEST_TARGET") or None)
    highest = os.environ.get("XPU_TEST_LEVEL", "")
    if highest:
        from xpuruntime.codegen.cpp.isa import LEVELS

        if highest not in LEVELS:
            raise pytest.UsageError(f"XPU_TEST_LEVEL is one of {', '.join(LEVELS)}; got {highest!r}")
        if lacking := _lacking(highest):
            raise pytest.UsageError(f"XPU_TEST_LEVEL={highest}: this processor lacks {lacking}")


@pytest.hookimpl(trylast=True)  # after -m and -k, so that the cases are drawn of what is left
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("own_level"):
        leave_out(config, items, [item for item in items if _levels_of(item)])
    keep_sampled(config, items)
    for item in items:
        if not item.get_closest_marker("timeout") and (
            item.get_closest_marker("conformance") or item.get_closest_marker("gpu")
        ):
            item.add_marker(pytest.mark.timeout(WHOLE_SUITE))
    if os.environ.get("XPU_TEST_DEVICE"):
        for item in items:
            if {item.path.name, getattr(item, "originalname", "")} & ONLY_PROCESSORS:
                item.add_marker(pytest.mark.skip(reason="about kernels that only processors have"))
        return
    for item in items:
        for level in _levels_of(item):
            if _lacking(level):
                item.add_marker(
                    pytest.mark.skip(reason=f"runs code of {level}, and this processor is below it")
                )


@pytest.hookimpl(tryfirst=True)  # before fixtures compile
def pytest_runtest_setup(item: pytest.Item) -> None:
    from xpuruntime.codegen.cpp.isa import LEVELS

    folder = item.path.relative_to(ROOT / "tests").parts[0]
    LEVELS.update(_levels(quick=folder in QUICK_FOLDERS and os.environ[SEED] != EVERYTHING))


@functools.cache
def _levels(quick: bool) -> dict[str, IsaLevel]:
    """Return the instruction-set levels with their compiler options: a user's, or those that compile quickly."""
    from xpuruntime.codegen.cpp.isa import LEVELS

    if not quick:
        return dict(LEVELS)
    return {
        name: dataclasses.replace(level, march_flags=(*level.march_flags, QUICK))
        for name, level in _levels(quick=False).items()
    }


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Collect the garbage of imports, and keep what is left out of later collections."""
    gc.collect()
    gc.freeze()
    # By the default thresholds, collections took a tenth of the CPU time of tests.
    gc.set_threshold(20_000, 20, 20)
    gc.enable()
    if torch := sys.modules.get("torch"):
        # torch.manual_seed formats the stack for each kind of device that may be initialized later, which took half of test_interp_opinfo.
        for module in (torch.cuda, torch.xpu, torch.mtia):
            module.traceback = types.SimpleNamespace(format_stack=list)
        list_composite_ops_once()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, Any, Any]:
    """After each file, leave what is alive out of later collections: imports and caches made a forced one take up to a second."""
    result = yield
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()
    return result


def list_composite_ops_once() -> None:
    """Let PyTorch load its composite ops once per decomposition, not once per namespace of ops, which took half of the import of a small module."""
    try:
        from torch._export import utils
        from torch.export import decomp_utils, exported_program

        load, collect = utils._materialize_cpp_cia_ops, utils._collect_all_valid_cia_ops
    except (ImportError, AttributeError):  # another version of PyTorch
        return

    def collect_once() -> Any:
        load()
        utils._materialize_cpp_cia_ops = lambda: None
        try:
            return collect()
        finally:
            utils._materialize_cpp_cia_ops = load

    for module in (utils, decomp_utils, exported_program):
        module._collect_all_valid_cia_ops = collect_once


def keep_sampled(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the cases of sampled tests that the seed does not draw.

    Each test function keeps its own n cases; functions of one file that share a ``group`` keep n together. With ``one_in=k``, a function
    or group runs with one of k seeds.
    """
    seed = os.environ[SEED]
    if seed == EVERYTHING:
        return
    cases: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if mark := item.get_closest_marker("sampled"):
            function = item.nodeid.partition("[")[0]
            group = mark.kwargs.get("group")
            cases[f"{function.partition('::')[0]}::{group}" if group else function].append(item)
    left_out: list[pytest.Item] = []
    for name, group in cases.items():
        marks = [mark for item in group for mark in item.iter_markers("sampled")]
        count = max(mark.args[0] if mark.args else len(group) for mark in marks)
        if not is_drawn(name, max(mark.kwargs.get("one_in", 1) for mark in marks), seed):
            count = 0
        kept = drawn([item.nodeid for item in group], count, seed)
        left_out += [item for item in group if item.nodeid not in kept]
    if left_out:
        config.stash[LEFT_OUT] = len(left_out)
        leave_out(config, items, left_out)


def leave_out(config: pytest.Config, items: list[pytest.Item], left_out: Sequence[pytest.Item]) -> None:
    """Deselect some of the tests."""
    names = set(left_out)
    config.hook.pytest_deselected(items=[item for item in items if item in names])
    items[:] = [item for item in items if item not in names]


def _levels_of(item: pytest.Item) -> set[str]:
    """Instruction-set levels whose code a test runs: those of its ``level`` marks and of its parameters."""
    from xpuruntime.codegen.cpp.isa import LEVELS

    levels = {mark.args[0] for mark in item.iter_markers("level")}
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    named = {p.removeprefix("cpu:") for p in parameters if isinstance(p, str) and p.startswith("cpu:")}
    return levels | named & LEVELS.keys()


@functools.cache
def _lacking(level: str) -> str:
    """Instruction sets of a level that this processor lacks, or that the system does not grant."""
    from xpuruntime import _core
    from xpuruntime.codegen.cpp.isa import LEVELS

    return ", ".join(_core.missing_requirements(sorted(LEVELS[level].features)))


@pytest.fixture(autouse=True)
def own_settings(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Drop every XPU_* variable and point the store at the folder of this test run (subprocesses inherit both)."""
    for name in [n for n in os.environ if n.startswith("XPU_") and not n.startswith("XPU_TEST_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XPU_CACHE_DIR", str(store_of_run(tmp_path_factory)))


@functools.cache
def _generators(module: types.ModuleType) -> tuple[tuple[Any, Callable[[], None]], ...]:
    """Generators of a test module and of the support modules that are loaded with it, each with what puts it back to its present state."""
    found: dict[int, tuple[Any, Callable[[], None]]] = {}
    folder = str(ROOT / "tests")
    loaded = (
        m for m in list(sys.modules.values()) if str(getattr(m, "__file__", None) or "").startswith(folder)
    )
    for owner in (module, *loaded):
        for value in list(vars(owner).values()):
            if isinstance(value, np.random.Generator):
                bits = value.bit_generator
                found[id(value)] = value, functools.partial(setattr, bits, "state", bits.state)
            elif type(value).__module__ == "torch._C" and hasattr(value, "set_state"):
                found[id(value)] = value, functools.partial(value.set_state, value.get_state())
    return tuple(_STARTS.setdefault(key, start) for key, start in found.items())


_STARTS: dict[int, tuple[Any, Callable[[], None]]] = {}
"""By its id, each generator and what puts it back to where it was when it was first met. The generator is kept, so that no other takes its id."""


@pytest.fixture(autouse=True)
def same_random_numbers(request: pytest.FixtureRequest) -> None:
    """Give each test the random inputs that it has alone, whatever ran before it in this process: a sample must not change them."""
    for _, restart in _generators(request.module):
        restart()


def store_of_run(factory: pytest.TempPathFactory) -> Path:
    """Return the store that all workers of a run share: what one of them compiled, none compiles again."""
    base = factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "xpu-cache"


@pytest.fixture(scope="session")
def shared_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of this run, for tests that start processes with an environment of their own."""
    return store_of_run(tmp_path_factory)


def link_binaries(store: Path, shared: Path) -> Path:
    """Make an empty store whose compiled texts are those of a shared one.

    Only these kinds are links: the store neither lists nor trims what is behind a link.
    """
    for folder in (store, store / "v1", shared, shared / "v1"):
        folder.mkdir(mode=0o700, exist_ok=True)
    for kind in ("object", "cubin"):
        (shared / "v1" / kind).mkdir(mode=0o700, exist_ok=True)
        (store / "v1" / kind).symlink_to(shared / "v1" / kind)
    return store


@pytest.fixture(scope="session")
def part() -> Callable[[Sequence[str], int], list[str]]:
    """Return ``count`` of some names, drawn by the seed of this run; all of them in a run of everything."""

    def part(names: Sequence[str], count: int) -> list[str]:
        seed = os.environ[SEED]
        kept = set(names) if seed == EVERYTHING else drawn(list(names), count, seed)
        return [name for name in names if name in kept]

    return part


@pytest.fixture
def fresh_store(tmp_path: Path, shared_store: Path) -> Path:
    """An empty store for one test. Texts that any test of this run compiled are not compiled again."""
    return link_binaries(tmp_path / "store", shared_store)


@pytest.fixture
def no_garbage() -> Iterator[None]:
    """Collect the garbage of earlier tests and make no collection during this one, so that counters of the process are its own.

    Objects that extensions hold may become garbage only after others were collected, so collection is repeated.
    """
    for _ in range(10):
        if not gc.collect():
            break
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(scope="session")
def seed() -> str:
    """The seed of this run; of a run of everything the commit's."""
    given = os.environ[SEED]
    return seed_of("commit") if given == EVERYTHING else given


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the source tree."""
    return ROOT


@pytest.fixture
def bare_python(tmp_path: Path) -> Callable[[str], str]:
    """Run code where only NumPy, ml_dtypes and xpuruntime exist, so that every vendor's package is really missing."""
    import ml_dtypes
    import numpy as np

    import xpuruntime

    folder = tmp_path / "bare"
    folder.mkdir()
    for package in (np, ml_dtypes, xpuruntime):
        source = Path(package.__path__[0]).resolve()
        for part in (source, source.with_name(f"{source.name}.libs")):
            if part.exists():
                (folder / part.name).symlink_to(part)

    def run(code: str) -> str:
        environment = {**os.environ, "PYTHONPATH": str(folder)}
        command = [sys.executable, "-S", "-c", code]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture(scope="session")
def onnx_file() -> Callable[..., Path]:
    """A seeded model's ONNX file, kept below build/ until what makes it changes."""
    from xpuruntime.testing.conformance.seeded.export import export_onnx

    folder = ROOT / "build" / "models"

    def export(name: str, **how: Any) -> Path:
        words = [name, *(f"{k}-{v}" for k, v in how.items())]
        return export_onnx(name, folder / f"{'_'.join(words)}.onnx", **how)

    return export


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty one."""
    return Store(tmp_path / "store", limit=1 << 30, mode="rw")
