"""Forms: how the values of a section may lie between two uses, raw or as the code of a codec.

A recode changes the form of a section, as a copy changes its place. The version stays the same.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from math import ceil, prod
from typing import Final

from .buffer import DTYPE_NBYTES, RAW, SHARES, Buffer, Fact, Form, Kind
from .passes import Need

BITS: Final = Form("bits")
TF32: Final = Form("tf32")
BITMAP: Final = Form("bitmap")  # of capacity 0; `with_share` gives it more
SSDC: Final = Form("ssdc")
FP16: Final = Form("fp16")
FP10: Final = Form("fp10")
FP8: Final = Form("fp8")
LOSSY_KINDS: Final = (Kind.INPUT, Kind.MAP)  # of the buffers whose values may be rounded
SIGNS_PER_BYTE: Final = 8
TF32_VALUES: Final = 4  # whose codes take 9 bytes
FP10_VALUES: Final = 3  # whose codes take 4 bytes
WORD_NBYTES: Final = 16  # of which sizes and addresses of heads and tails are multiples
BLOCK: Final = 1024  # values that are packed together
MOST_VALUES: Final = 2**31 - 1  # of a section that is packed


@dataclass(frozen=True, slots=True)
class Packing:
    """The bytes of codes that hold only the values whose bits are not all 0."""

    block_nbytes: int  # of a head, for each block of values
    index_nbytes: int  # of a head or a tail, for each packed value beside the value

    def head_nbytes(self, values: int, itemsize: int, capacity: int) -> int:
        """Bytes of the head of a section that holds up to `capacity` values."""
        blocks = aligned(-(-values // BLOCK) * self.block_nbytes)
        return blocks + capacity * (itemsize + self.index_nbytes)

    def capacity(self, values: int, itemsize: int, head_nbytes: int) -> int:
        """The packed values for which a head of a section has room."""
        packed = head_nbytes - self.head_nbytes(values, itemsize, 0)
        return min(values, packed // (itemsize + self.index_nbytes))


def aligned(nbytes: int) -> int:
    """The next multiple of a word."""
    return -(-nbytes // WORD_NBYTES) * WORD_NBYTES


@dataclass(frozen=True, slots=True)
class Codec:
    """A way to code sections.

    Where it gives values, decoding gives their bits back, or rounded values if the codec is not
    exact. These have the facts of the values.
    """

    name: str
    gives: Need  # the most that a use may want of the values
    fits: Callable[[Buffer], bool]
    # The buffer with the shape and the type of its codes.
    coded: Callable[[Buffer, Form], Buffer]
    # The facts of the values without which decoding gives other bits.
    asks: frozenset[Fact] = frozenset()
    # Whether a section has a code of its own. The code of some rows is else a part of that of more.
    by_section: bool = False
    alignment: int = 1  # bytes of which the address of a code is a multiple
    packing: Packing | None = None  # of codes whose size depends on the values
    exact: bool = True  # decoding loses nothing of what the codec gives


def with_share(form: Form, share: float) -> Form:
    """The form with a capacity of at least this share of the values."""
    return form._replace(share=min(SHARES, max(0, ceil(share * SHARES))))


def codec_of(form: Form) -> Codec:
    """The codec of a form other than raw."""
    return CODECS[form.codec]


def may_rest_in(buffer: Buffer, form: Form) -> bool:
    """True if the values that forward leaves in a buffer may be coded in this form."""
    if form == RAW:
        return True
    return fits(buffer, form) and codec_of(form).asks <= buffer.facts


def fits(buffer: Buffer, form: Form) -> bool:
    """True if rows of a buffer may have this form, whatever their values."""
    codec = CODECS.get(form.codec)
    if codec is None or not codec.fits(buffer):
        return form == RAW
    if codec.packing is None:
        return form == Form(codec.name)
    if not 0 <= form.share <= SHARES:
        return False
    return not form.tail or in_form(buffer, form).row_nbytes > 0


def is_lossy(form: Form) -> bool:
    """True for a code of rounded values."""
    return form != RAW and not codec_of(form).exact


def tail_of(buffer: Buffer, form: Form) -> Form | None:
    """The form of the tail of a code in this form. None where the head has room for all values."""
    tail = form._replace(tail=True)
    return tail if is_packed(form) and in_form(buffer, tail).row_nbytes else None


def is_packed(form: Form) -> bool:
    """True for a code whose size depends on the values."""
    return form != RAW and codec_of(form).packing is not None


def capacity_of(buffer: Buffer, section: int, form: Form) -> int:
    """The values for which the head of a section's code has room."""
    packing, start_stop = codec_of(form).packing, buffer.bounds(section)
    assert packing is not None, form
    values = (start_stop[1] - start_stop[0]) * prod(buffer.shape[1:])
    head = in_form(buffer, form).section_nbytes(section)
    return packing.capacity(values, DTYPE_NBYTES[buffer.dtype], head)


def in_form(buffer: Buffer, form: Form) -> Buffer:
    """The buffer with the shape and the type that it has in a form, in the same sections."""
    return buffer if form == RAW else _coded(buffer, form)


@cache
def _coded(buffer: Buffer, form: Form) -> Buffer:
    return codec_of(form).coded(buffer, form)


def _sign_bits(buffer: Buffer, _: Form) -> Buffer:
    *pixels, channels = buffer.shape
    return replace(buffer, shape=(*pixels, channels // SIGNS_PER_BYTE), dtype="uint8")


def _has_whole_bytes(buffer: Buffer) -> bool:
    return len(buffer.shape) > 1 and buffer.shape[-1] % SIGNS_PER_BYTE == 0


def _tf32(buffer: Buffer, _: Form) -> Buffer:
    """A row has as many bytes as it adds to the code of its section."""
    fours = prod(buffer.shape[1:]) // TF32_VALUES
    return replace(buffer, shape=(buffer.rows, 9 * fours), dtype="uint8")


def _has_fours(buffer: Buffer) -> bool:
    return buffer.dtype == "float32" and prod(buffer.shape[1:]) % TF32_VALUES == 0


def _fp10(buffer: Buffer, _: Form) -> Buffer:
    """A row has the bytes of its own code. That of a section takes no more than all its rows."""
    words = -(-prod(buffer.shape[1:]) // FP10_VALUES)
    return replace(buffer, shape=(buffer.rows, 4 * words), dtype="uint8")


def _bytes_each(nbytes: int, buffer: Buffer, _: Form) -> Buffer:
    """As many bytes a value."""
    return replace(buffer, shape=(buffer.rows, nbytes * prod(buffer.shape[1:])), dtype="uint8")


def _may_be_rounded(dtypes: tuple[str, ...], buffer: Buffer) -> bool:
    return buffer.kind in LOSSY_KINDS and buffer.dtype in dtypes


def _lossy_codec(
    form: Form,
    coded: Callable[[Buffer, Form], Buffer],
    dtypes: tuple[str, ...] = ("float32", "bfloat16"),
    *,
    by_section: bool = False,
    alignment: int = 1,
) -> Codec:
    return Codec(
        form.codec,
        gives=Need.VALUES,
        fits=partial(_may_be_rounded, dtypes),
        coded=coded,
        by_section=by_section,
        alignment=alignment,
        exact=False,
    )


def _packed(packing: Packing, buffer: Buffer, form: Form) -> Buffer:
    """Rows have as many bytes each as all sections need, the last too, which may be shorter."""
    lengths = {min(buffer.section, buffer.rows), buffer.rows % buffer.section} - {0}
    width, itemsize = prod(buffer.shape[1:]), DTYPE_NBYTES[buffer.dtype]

    def most(nbytes: Callable[[int, int], int]) -> int:
        """The bytes of a row, given those of a section by its rows and its values."""
        return max(aligned(-(-nbytes(rows, rows * width) // rows)) for rows in lengths)

    def head_nbytes(rows: int, values: int) -> int:
        return packing.head_nbytes(values, itemsize, -(-values * form.share // SHARES))

    def tail_nbytes(rows: int, values: int) -> int:
        left = values - packing.capacity(values, itemsize, rows * head)
        return left * (itemsize + packing.index_nbytes)

    head = most(head_nbytes)
    row_nbytes = most(tail_nbytes) if form.tail else head
    return replace(buffer, shape=(buffer.rows, row_nbytes), dtype="uint8")


def _has_floats(buffer: Buffer) -> bool:
    values = min(buffer.section, buffer.rows) * prod(buffer.shape[1:])
    return buffer.dtype in ("float32", "bfloat16") and values <= MOST_VALUES


def _packing_codec(form: Form, packing: Packing) -> Codec:
    return Codec(
        form.codec,
        gives=Need.VALUES,
        fits=_has_floats,
        coded=partial(_packed, packing),
        by_section=True,
        alignment=WORD_NBYTES,
        packing=packing,
    )


CODECS: Final[Mapping[str, Codec]] = {
    codec.name: codec
    for codec in (
        Codec(BITS.codec, gives=Need.SIGN, fits=_has_whole_bytes, coded=_sign_bits),
        Codec(
            TF32.codec,
            gives=Need.VALUES,
            fits=_has_fours,
            coded=_tf32,
            asks=frozenset({Fact.NOT_NEGATIVE, Fact.TF32}),
            by_section=True,
            alignment=2,
        ),
        _packing_codec(BITMAP, Packing(block_nbytes=132, index_nbytes=0)),
        _packing_codec(SSDC, Packing(block_nbytes=12, index_nbytes=1)),
        _lossy_codec(FP16, partial(_bytes_each, 2), ("float32",), alignment=2),
        _lossy_codec(FP10, _fp10, by_section=True, alignment=4),
        _lossy_codec(FP8, partial(_bytes_each, 1)),
    )
}
