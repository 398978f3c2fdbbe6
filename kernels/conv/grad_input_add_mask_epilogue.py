"""Epilogue of grad_input_add_mask.py: a part of a tile is added to another term, masked, stored."""

from ..language.gluon import fence_async_shared, gl, gluon, store_box
from ..language.hopper import rounded


@gluon.jit
def signs_at(tile, signs_ptr, row, c, num_rows, channels) -> gl.tensor:
    """The words of sign bits [pixels, channels / 32] of the tile at (row, c)."""
    WORDS: gl.constexpr = tile.shape[1] // 32
    AT: gl.constexpr = gl.SliceLayout(2, tile.reshape([tile.shape[0], WORDS, 32]).type.layout)
    rows = row + gl.arange(0, tile.shape[0], gl.SliceLayout(1, AT))
    words = c // 32 + gl.arange(0, WORDS, gl.SliceLayout(0, AT))
    offs = gl.expand_dims(rows.to(gl.int64) * (channels // 32), 1) + gl.expand_dims(words, 0)
    return gl.load(signs_ptr + offs, mask=gl.expand_dims(rows < num_rows, 1), other=0)


@gluon.jit
def _masked_by_bits(tile, signs):
    """The tile [pixels, channels] where its sign bits are set, else 0."""
    members = tile.reshape([tile.shape[0], signs.shape[1], 32])
    PLACE: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(1, members.type.layout))
    places = gl.expand_dims(gl.expand_dims(gl.arange(0, 32, PLACE), 0), 1)
    passing = (gl.expand_dims(signs, 2) >> places) & 1
    return gl.where(passing != 0, members, gl.zeros_like(members)).reshape(tile.shape)


@gluon.jit
def _values_at(tile, y_ptr, row, c, num_rows, channels):
    """The values in float32 of the ReLU's output [pixels, channels] of the tile at (row, c)."""
    AT: gl.constexpr = tile.type.layout
    rows = row + gl.arange(0, tile.shape[0], gl.SliceLayout(1, AT))
    columns = c + gl.arange(0, tile.shape[1], gl.SliceLayout(0, AT))
    offs = gl.expand_dims(rows.to(gl.int64) * channels, 1) + gl.expand_dims(columns, 0)
    y = gl.load(y_ptr + offs, mask=gl.expand_dims(rows < num_rows, 1), other=0.0)
    return y.to(gl.float32)


@gluon.jit
def _masked_by_map(tile, y):
    """The tile [pixels, channels] where the values y are above zero or NaN, else 0."""
    return gl.where(y <= 0, gl.zeros_like(tile), tile)


@gluon.jit
def _halves(tile):
    """The channels of a tile [pixels, channels], in two halves."""
    SIDES: gl.constexpr = [tile.shape[0], 2, tile.shape[1] // 2]
    return gl.split(tile.reshape(SIDES).permute([0, 2, 1]))


@gluon.jit
def parts_of(tile, PARTS: gl.constexpr) -> tuple:
    """The channels of a tile [pixels, channels], in two or four parts."""
    low, high = _halves(tile)
    if PARTS == 2:
        parts = low, high
    else:
        first, second = _halves(low)
        third, fourth = _halves(high)
        parts = first, second, third, fourth
    return parts


@gluon.jit
def add_and_store(
    acc, signs, y, dx_desc, dx_buf, mask_buf, row, c, num_rows, channels,
    MASK: gl.constexpr, ROUND: gl.constexpr,
) -> None:  # fmt: skip
    """Add the sums acc [pixels, channels] to the other term in dx_buf, mask and store them.

    By MASK words of sign bits mask them, values in mask_buf, or those that the pointer y leads to.
    """
    AT: gl.constexpr = acc.type.layout
    term = acc.to(dx_desc.dtype).to(gl.float32)
    total = (dx_buf.load(AT).to(gl.float32) + term).to(dx_desc.dtype)
    if MASK == "bits":
        total = _masked_by_bits(total, signs)
    elif MASK == "boxes":
        total = _masked_by_map(total, mask_buf.load(AT).to(gl.float32))
    else:
        total = _masked_by_map(total, _values_at(total, y, row, c, num_rows, channels))
    if ROUND:
        total = rounded(total)
    dx_buf.store(gl.convert_layout(total, AT))
    fence_async_shared()
    store_box(dx_desc, [row, c], dx_buf)
