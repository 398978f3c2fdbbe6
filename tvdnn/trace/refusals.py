"""Why a network is refused: each reason by module and line, and the error that lists them all."""

from collections.abc import Iterable, Mapping

from ..errors import UnsupportedOpError
from ..ops.registry import INSTEAD_OF, SUPPORTED
from .source_lines import source_location

BY_VALUES = "the size of the result hangs on the values of maps"
INSTEAD: Mapping[str, str] = {
    "nonzero": BY_VALUES,
    "masked_select": BY_VALUES,
    "unique": BY_VALUES,
    "item": "no number of Python's is known before a step runs",
    "tolist": "no number of Python's is known before a step runs",
}


def unsupported(refused: Iterable[str]) -> UnsupportedOpError:
    """The error that lists all refused operations and the supported ones."""
    lines = "".join(f"\n  {line}" for line in dict.fromkeys(refused))
    return UnsupportedOpError(f"tvdnn cannot trace this network:{lines}\nsupported: {SUPPORTED}")


def refusal(where: str, reason: str) -> str:
    """The path of a module, the reason, and the line of the network's own code that runs."""
    return f"{where}: {reason}{source_location()}"


def suggestion(reason: str) -> str:
    """The alternative to a refused layer or function, in brackets; "" where there is none."""
    hint = INSTEAD.get(reason) or INSTEAD_OF.get(reason)
    return f" ({hint})" if hint else ""
