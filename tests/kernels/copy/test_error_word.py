"""The error word raises the flag, and leaves one that is up."""

from collections.abc import Callable

import pytest
import torch

from tvdnn.kernels.copy.error_word import raise_flag, raise_flag_reference


@pytest.mark.parametrize("launcher", [raise_flag, raise_flag_reference])
@pytest.mark.parametrize(
    ("word", "before", "after"), [(0, 0.0, 0.0), (1, 0.0, 1.0), (0, 1.0, 1.0), (7, 1.0, 1.0)]
)
def test_a_word_that_is_not_0_raises_the_flag(
    launcher: Callable[..., None],
    word: int,
    before: float,
    after: float,
    generator: torch.Generator,
) -> None:
    """The word lies in memory of the host, pinned where there is a GPU."""
    cuda = generator.device.type == "cuda"
    words = torch.full((1,), word, dtype=torch.int32, pin_memory=cuda)
    flag = torch.full((1,), before, device=generator.device)
    launcher(words, flag)
    assert flag.item() == after
