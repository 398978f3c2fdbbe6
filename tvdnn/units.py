"""Bytes and seconds as people write and read them."""

import re
from typing import Literal, TypeAlias

from .errors import InputError

KIB, MIB, GIB = 2**10, 2**20, 2**30
Limit: TypeAlias = int | Literal["min"] | None
_UNITS = {"": 1, "b": 1, "kib": KIB, "mib": MIB, "gib": GIB, "tib": 2**40}
_UNITS |= {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}


def parse_bytes(text: str | int | None) -> int | None:
    """Bytes of "4GiB", "512 MiB", "3e9" or a plain number; None and "none" mean no limit."""
    if text is None or isinstance(text, int):
        return _positive(text, text)
    if text.strip().lower() == "none":
        return None
    match = re.fullmatch(r"\s*(\d+\.?\d*(?:e\d+)?)\s*([a-z]*)\s*", text.lower())
    if match is None or match[2] not in _UNITS:
        raise InputError(
            f"{text!r} is not a number of bytes; write for example 4GiB, 512MiB or none"
        )
    return _positive(round(float(match[1]) * _UNITS[match[2]]), text)


def parse_limit(text: str | int | None) -> Limit:
    """A budget: bytes as `parse_bytes` reads them, or "min", the floor of a policy."""
    return "min" if isinstance(text, str) and text.strip().lower() == "min" else parse_bytes(text)


def _positive(nbytes: int | None, text: str | int | None) -> int | None:
    if nbytes is not None and nbytes <= 0:
        raise InputError(f"{text!r} is not a positive number of bytes; write for example 4GiB")
    return nbytes


def format_bytes(nbytes: float | None) -> str:
    """`nbytes` in the binary unit that keeps it under 1024: "3.21 GiB"; None is "none"."""
    if nbytes is None:
        return "none"
    for size, unit in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(nbytes) >= size:
            return f"{nbytes / size:.2f} {unit}"
    return f"{nbytes:.0f} B"


def format_seconds(seconds: float | None) -> str:
    """`seconds` in s, ms or us with three or four digits; None is "-"."""
    if seconds is None:
        return "-"
    for size, unit in ((1.0, "s"), (1e-3, "ms")):
        if abs(seconds) >= size:
            return f"{seconds / size:.4g} {unit}"
    return f"{seconds * 1e6:.4g} us"
