"""Forms: how the values of a section may lie between two uses. A codec is a form other than raw.

A recode changes the form of a section, as a copy changes its place. The version stays the same.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Final, TypeAlias

from .buffer import Buffer
from .passes import Need

Form: TypeAlias = str
RAW: Final[Form] = "raw"
BITS: Final[Form] = "bits"
SIGNS_PER_BYTE: Final = 8


@dataclass(frozen=True, slots=True)
class Codec:
    """A form that a section may rest in. Codes of neighbouring sections are neighbours, too."""

    name: Form
    gives: Need  # the most that a use may want of the values
    fits: Callable[[Buffer], bool]
    coded: Callable[[Buffer], Buffer]  # the buffer with the shape and the type of its codes


def in_form(buffer: Buffer, form: Form) -> Buffer:
    """The buffer with the shape and the type that it has in a form, in the same sections."""
    return buffer if form == RAW else _coded(buffer, form)


@cache
def _coded(buffer: Buffer, form: Form) -> Buffer:
    return CODECS[form].coded(buffer)


def _sign_bits(buffer: Buffer) -> Buffer:
    *pixels, channels = buffer.shape
    return replace(buffer, shape=(*pixels, channels // SIGNS_PER_BYTE), dtype="uint8")


def _has_whole_bytes(buffer: Buffer) -> bool:
    return len(buffer.shape) > 1 and buffer.shape[-1] % SIGNS_PER_BYTE == 0


CODECS: Final[Mapping[Form, Codec]] = {
    codec.name: codec
    for codec in (Codec(BITS, gives=Need.SIGN, fits=_has_whole_bytes, coded=_sign_bits),)
}
