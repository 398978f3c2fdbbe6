"""Examples that hypothesis draws, the same in every run."""

from collections.abc import Callable
from typing import Any, TypeVar

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

Test = TypeVar("Test", bound=Callable[..., None])
# The sizes of a random chain of layers. A chunk size is in bytes.
CHAIN: dict[str, SearchStrategy[int]] = {
    "batch": st.integers(2, 9),
    "image": st.integers(6, 12),
    "channels": st.integers(2, 8),
    "chunk_size": st.integers(200, 20_000),
}


def examples(max_examples: int, **strategies: SearchStrategy[Any]) -> Callable[[Test], Test]:
    """Run a test with examples of a `seed` and of these strategies."""
    drawn = given(seed=st.integers(0, 2**32 - 1), **strategies)
    chosen = settings(max_examples=max_examples, derandomize=True, deadline=None, database=None)
    return lambda test: chosen(drawn(test))
