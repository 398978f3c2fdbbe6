"""The precision in which torch runs beside the layers."""

from collections.abc import Iterator

import pytest

from tests.support.accuracy import torchs_precision


@pytest.fixture(autouse=True)
def exact_float32() -> Iterator[None]:
    """No TF32 on a GPU: float32 results are held to float32's error."""
    with torchs_precision("fp32"):
        yield
