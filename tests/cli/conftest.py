"""Commands run without a terminal, and leave the number of threads as it was."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _plain_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """No terminal, of a width that wraps nothing."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    """Commands may set the number of threads; other tests have their own."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
