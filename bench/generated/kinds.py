"""Kind: one record for each operation, layer or motif that the generator draws."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from bench.generated.source import chance, choice
from bench.generated.writer import Writer

Draw = Callable[[Writer, str], str]


@dataclass(frozen=True, slots=True)
class Kind:
    """An operation, layer or motif that may be drawn."""

    name: str
    weight: int  # its share of the draws
    reads: tuple[str, ...]  # the kinds of values that it takes (Writer.kind)
    draw: Draw  # writes it behind a value, and names the value that it ends with
    changes: bool = False  # values in place, where autograd may refuse
    planned: bool = False  # tvdnn does not support it yet; drawn only on demand
    refused: bool = False  # tvdnn refuses it; drawn in networks of its own


KINDS: Final[dict[str, Kind]] = {}


def kind(
    weight: int,
    *reads: str,
    changes: bool = False,
    planned: bool = False,
    refused: bool = False,
) -> Callable[[Draw], Draw]:
    """Register a function as the Kind of its name."""

    def register(draw: Draw) -> Draw:
        name = draw.__name__
        assert name not in KINDS, name
        KINDS[name] = Kind(name, weight, reads or ("map",), draw, changes, planned, refused)
        return draw

    return register


# Settings as text.


def channels(w: Writer) -> int:
    """Channels of a new map: 1 to 20, seldom 32, 64 or 128; of few numbers where that is asked."""
    if w.few:
        return choice(w.source, (8, 4, 16, 3, 32))
    if chance(w.source, 4):
        return choice(w.source, (32, 64, 128))
    return choice(w.source, (4, 8, 3, 6, 2, 5, 12, 1, 7, 10, 16, 20))


def text_of(value: object) -> str:
    return repr(value)


def settings(**given: object) -> str:
    """Keyword arguments for a call, each after a comma, without arguments that are None."""
    return "".join(f", {name}={value!r}" for name, value in given.items() if value is not None)


def sometimes(w: Writer, percent: int, value: object) -> object:
    """The value in `percent` of a hundred draws, else None."""
    return value if chance(w.source, percent) else None


def both(w: Writer, least: int, most: int) -> int | tuple[int, int]:
    """A number for both sides of a map or, less often, one for each."""
    first = w.source.integer(least, most)
    return (first, w.source.integer(least, most)) if chance(w.source, 25) else first


def sides(value: int | tuple[int, int]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else value


def sized(w: Writer, x: str, text: str) -> str:
    """The text with a map's sizes in place of BATCH, CHANNELS, HEIGHT and WIDTH."""
    for name, size in zip(("BATCH", "CHANNELS", "HEIGHT", "WIDTH"), w.shape(x), strict=True):
        text = text.replace(name, str(size))
    return text
