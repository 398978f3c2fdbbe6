"""Where the tests run: on the GPU if there is one, else with Triton's interpreter on the CPU."""

import gc
import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # read as NumPy is imported; its products are small too
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read by triton.jit as kernel modules are imported

from bench import granularity
from tests.support import examples, interpreter, searching, tuning
from tests.support.ordering import share, slow_first, some_cases
from tvdnn.experiment import tuner
from tvdnn.experiment.trials import Job

if not torch.cuda.is_available():
    interpreter.install()

CACHED_NBYTES = 2 << 30  # freeing less takes longer than it is worth


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--every",
        type=int,
        metavar="N",
        help="run one of every N cases of a test, by default 6; 1 runs all, slow tests too, and is"
        " the default for tests that are named",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Workers are given what the first process chooses."""
    config.option.every = examples.every = share(config)


def pytest_xdist_auto_num_workers() -> int:
    """A worker a core; beside a GPU none, as tests look at its memory."""
    return 0 if torch.cuda.is_available() else os.cpu_count() or 1


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect tests with Python's search for cycles off; later searches skip the objects made here.

    A full search of the 600,000 objects of the imported modules takes 0.6 s.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        gc.set_threshold(20_000, 20, 50)  # the default is 700, 10, 10: most of these find nothing


def pytest_unconfigure() -> None:
    """Let Python free the skipped objects at its exit, where Triton reports leaks."""
    gc.unfreeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Slow tests go first; those marked `gpu` are skipped where there is none."""
    every = config.getoption("--every")
    chosen = some_cases(items, every)
    if every > 1:
        chosen = [item for item in chosen if item.get_closest_marker("slow") is None]
    if len(chosen) < len(items):
        left = set(items).difference(chosen)
        config.hook.pytest_deselected(items=list(left))
    items[:] = slow_first(chosen, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu") is not None:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Torch's operations are small here; waiting threads would take far longer."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def torch_seed() -> None:
    """Torch's random numbers are the same in a test whatever runs before it."""
    torch.manual_seed(20)


@pytest.fixture(autouse=True)
def memory_given_back() -> Iterator[None]:
    """A test leaves no GPU memory in torch's cache that tests in other processes could want."""
    yield
    if torch.cuda.is_available() and torch.cuda.memory_reserved() > CACHED_NBYTES:
        torch.cuda.empty_cache()


@pytest.fixture(scope="session", autouse=True)
def cache_apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What was tuned on this machine changes no plan; beside a GPU profiles are kept, and that."""
    with pytest.MonkeyPatch.context() as patch:
        if not torch.cuda.is_available():
            patch.setenv("TVDNN_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is tuned in this test changes no plan of others."""
    monkeypatch.setenv("TVDNN_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of plans that are tried are not simulated but guessed."""
    monkeypatch.setattr(Job, "seconds", tuning.guessed_s)


@pytest.fixture
def few_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tune one policy, one lead and few sizes."""
    monkeypatch.setattr(tuner, "SEARCHED", ("auto",))
    monkeypatch.setattr(tuner, "LEADS", (2,))
    monkeypatch.setattr(tuner, "SMALL_CLASS", 0.5)  # few classes have sizes of their own


@pytest.fixture(scope="session")
def device() -> torch.device:
    """The device on which kernels are tested."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture
def generator(device: torch.device) -> torch.Generator:
    """A seeded source of random inputs, fresh for every test."""
    return torch.Generator(device).manual_seed(20)


@pytest.fixture
def units_of_one() -> Iterator[None]:
    """Parameter gradients are two sums whose launches may start at any sample, as for large maps.

    For the references alone, which run unit by unit.
    """
    with granularity.units_of_one():
        yield


@pytest.fixture
def few_trials() -> Iterator[None]:
    """For tests that any plan must pass."""
    with searching.few_trials():
        yield
