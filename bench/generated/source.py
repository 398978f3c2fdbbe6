"""Where the generator's choices come from: a seed, or Hypothesis, which shrinks what fails."""

import random
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from hypothesis import strategies as st

T = TypeVar("T")


class Source(Protocol):
    """Draws whole numbers. Simple choices come first, as Hypothesis shrinks towards the least."""

    def integer(self, least: int, most: int) -> int: ...


class Seeded:
    """Choices that follow from a seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def integer(self, least: int, most: int) -> int:
        return self.rng.randint(least, most)


class Drawn:
    """Choices that Hypothesis makes."""

    def __init__(self, draw: Callable[[st.SearchStrategy[int]], int]) -> None:
        self.draw = draw

    def integer(self, least: int, most: int) -> int:
        return self.draw(st.integers(least, most))


def choice(source: Source, options: Sequence[T]) -> T:
    return options[source.integer(0, len(options) - 1)]


def chance(source: Source, percent: int) -> bool:
    """True in `percent` of a hundred draws; the simplest draw is False."""
    return source.integer(0, 99) >= 100 - percent


def weighted(source: Source, options: Sequence[T], weights: Sequence[int]) -> T:
    """An option by its weight. The first is the simplest."""
    place = source.integer(0, sum(weights) - 1)
    for option, weight in zip(options, weights, strict=True):
        place -= weight
        if place < 0:
            return option
    raise AssertionError("the place lies within the sum of the weights")
