"""The versions of torch and Triton that tvdnn is tested with, and what to say of others."""

import functools
import re
import warnings
from importlib.metadata import PackageNotFoundError, version
from typing import Final

Minor = tuple[int, int]

# Each torch with the Triton that it brings.
TESTED: Final[frozenset[tuple[Minor, Minor]]] = frozenset(
    {
        ((2, 11), (3, 6)),
        ((2, 12), (3, 7)),
        ((2, 13), (3, 7)),
        ((2, 14), (3, 8)),
        ((2, 15), (3, 9)),
    }
)


def untested(torch: str, triton: str | None) -> str | None:
    """What to say of these versions where they are not supported together; None where they are.

    Without Triton, as on the CPU of a Mac, torch's version alone counts.
    """
    pair = minor(torch), None if triton is None else minor(triton)
    if any(pair in (tested, (tested[0], None)) for tested in TESTED):
        return None
    named = f"torch {torch}" if triton is None else f"torch {torch} with Triton {triton}"
    return (
        f"tvdnn is not tested with {named}: it is with torch {_dotted(min(TESTED)[0])} to"
        f" {_dotted(max(TESTED)[0])} and the Triton that each of them brings"
    )


def untested_here() -> str | None:
    """What to say of the versions installed."""
    torch = installed("torch")
    return None if torch is None else untested(torch, installed("triton"))


@functools.cache
def warn_of_untested() -> None:
    """Warn, once a process, where the versions installed are not tested together."""
    if (said := untested_here()) is not None:
        warnings.warn(said, stacklevel=2)


def installed(package: str) -> str | None:
    """A package's version; None where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def minor(text: str) -> Minor:
    """The first two numbers of a version: (2, 11) of "2.11.0+cu130"."""
    first, second = re.findall(r"\d+", text)[:2]
    return int(first), int(second)


def _dotted(numbers: Minor) -> str:
    return ".".join(map(str, numbers))
