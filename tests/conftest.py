"""Where the tests run: on the GPU if there is one, else with Triton's interpreter on the CPU."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read by triton.jit as kernel modules are imported

from tvdnn.kernels import interpreter

if not torch.cuda.is_available():
    interpreter.install()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests marked `gpu` where there is none."""
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu") is not None:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Torch's operations are small here; waiting threads would take far longer."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def device() -> torch.device:
    """The device on which kernels are tested."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture
def generator(device: torch.device) -> torch.Generator:
    """A seeded source of random inputs, fresh for every test."""
    return torch.Generator(device).manual_seed(20)
