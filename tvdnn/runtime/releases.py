"""The versions of torch and Triton that tvdnn is tested with, and warnings about others."""

import functools
import re
import warnings
from importlib.metadata import PackageNotFoundError, version
from typing import Final

Minor = tuple[int, int]

# Each version of torch with the version of Triton that it depends on.
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
    """A warning about versions that are not supported together. None where they are.

    Without Triton, as on the CPU of a Mac, only the version of torch counts.
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
    """A warning about the installed versions, or None."""
    torch = installed("torch")
    return None if torch is None else untested(torch, installed("triton"))


@functools.cache
def warn_of_untested() -> None:
    """Warn once in a process where the installed versions are not tested together."""
    if (said := untested_here()) is not None:
        warnings.warn(said, stacklevel=2)


def installed(package: str) -> str | None:
    """The version of a package. None where it is not installed."""
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
