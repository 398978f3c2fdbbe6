"""Examples that hypothesis draws, the same in every run.

A run of one of every so many cases (`pytest --every N`) draws one of every so many examples.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

Test = TypeVar("Test", bound=Callable[..., None])
FEWEST = 4  # of a test's examples
# The sizes of a random chain of layers. A chunk size is in bytes.
CHAIN: dict[str, SearchStrategy[int]] = {
    "batch": st.integers(2, 9),
    "image": st.integers(6, 12),
    "channels": st.integers(2, 8),
    "chunk_size": st.integers(200, 20_000),
}


every = 1  # set as tests are collected


def examples(max_examples: int, **strategies: SearchStrategy[Any]) -> Callable[[Test], Test]:
    """Run a test with examples of a `seed` and of these strategies."""
    drawn = given(seed=st.integers(0, 2**32 - 1), **strategies)
    fewer = max(max_examples // every, min(FEWEST, max_examples))
    chosen = settings(max_examples=fewer, derandomize=True, deadline=None, database=None)
    return lambda test: chosen(drawn(test))
