"""Loads of warp_specialized.py: what its warp that loads does, one tile after the other.

Every variable that a loop changes starts from a number (see warp_specialized.py).
"""

from ..language.gluon import gl, gluon, load_box, mbarrier, reinterpreted
from .bands import band_start, first_output


@gluon.jit
def tile_place(tile, tiles, group, block, BY_GROUP: gl.constexpr) -> tuple:
    """Sample, row, column and channel at which a tile starts. `block` has the sides of a tile."""
    _, tiles_h, tiles_w, tiles_k = tiles
    box = tile // tiles_k
    n = box // (tiles_w * tiles_h) * block[0]
    h = box // tiles_w % tiles_h * block[1]
    k = first_output(tile % tiles_k, group, block[3], BY_GROUP)
    return n, h, box % tiles_w * block[2], k


@gluon.jit
def _band_of(k, bands, BANDS: gl.constexpr):
    """The first input channel that the tile of output channels from k on reads."""
    in_width, out_width, last_band = bands
    return band_start(k, in_width, out_width, last_band) if BANDS else 0


@gluon.jit
def _load_boxes(
    x_desc, odd_desc, packed_desc, x_bufs, packed_bufs, full, empty, tiles, steps_c, taps, offsets,
    bands, BLOCK: gl.constexpr, BANDS: gl.constexpr, BY_GROUP: gl.constexpr,
):  # fmt: skip
    """Fill the ring of stages, one step of one tile after the other.

    The taps of a column come first, then input channels, then columns.

    At stride 2 x has 5 axes [samples, rows / 2, 2, columns / 2, channels]: `x_desc` has its even
    columns, `odd_desc` its odd ones. Outside of both are zeros: a box may be wider than the map has
    channels.
    """
    STAGES: gl.constexpr = x_bufs.shape[0]
    AXES: gl.constexpr = len(x_desc.block_type.shape)
    BLOCK_C: gl.constexpr = x_desc.block_type.shape[AXES - 1]
    taps_h, taps_w = taps
    pad_h, pad_w, dil_h, dil_w, packed_h, packed_w = offsets
    stage = 0
    phase = 1
    for tile in range(gl.program_id(0), tiles[0], gl.num_programs(0)):
        n, h, w, k = tile_place(tile, tiles, bands[1], BLOCK, BY_GROUP)
        band = _band_of(k, bands, BANDS)
        r = 0
        s = 0
        c = 0
        for _ in range(taps_h * taps_w * steps_c):
            mbarrier.wait(empty.index(stage), phase)
            bar = full.index(stage)
            mbarrier.expect(bar, x_desc.block_type.nbytes + packed_desc.block_type.nbytes)
            row = r * dil_h - pad_h
            column = s * dil_w - pad_w
            if AXES == 5:
                place = [n, h + (row >> 1), row & 1, w + (column >> 1), band + c]
                if (column & 1) == 0:
                    load_box(x_desc, place, bar, x_bufs.index(stage))
                else:
                    load_box(odd_desc, place, bar, x_bufs.index(stage))
            else:
                place = [n, h + row, w + column, band + c]
                load_box(x_desc, place, bar, x_bufs.index(stage))
            place = [k, r * packed_h + s * packed_w + c]
            load_box(packed_desc, place, bar, packed_bufs.index(stage))
            stage += 1
            if stage == STAGES:
                stage = 0
                phase ^= 1
            r += 1
            if r == taps_h:
                r = 0
                c += BLOCK_C
            if c == steps_c * BLOCK_C:
                c = 0
                s += 1


@gluon.jit
def _load_rows(
    x_desc, edge_desc, packed_desc, x_rows, packed_bufs, full, empty, packed_full, packed_empty,
    tiles, steps_c, taps_w, offsets, bands, R: gl.constexpr, BLOCK: gl.constexpr,
    BANDS: gl.constexpr,
):  # fmt: skip
    """`_load_boxes` with stages of the rows that the R taps of a column read, and of R weights."""
    BLOCK_C: gl.constexpr = x_rows.shape[2]
    HEIGHT: gl.constexpr = BLOCK[1] + R - 1
    BOX: gl.constexpr = x_desc.block_type.shape
    EDGE: gl.constexpr = edge_desc.block_type.shape
    pad_h, pad_w, _, dil_w, packed_h, packed_w = offsets
    count = 0
    for tile in range(gl.program_id(0), tiles[0], gl.num_programs(0)):
        n, h, w, k = tile_place(tile, tiles, bands[1], BLOCK, False)
        band = _band_of(k, bands, BANDS)
        for step in range(taps_w * steps_c):
            column = w - pad_w + step // steps_c * dil_w
            c = step % steps_c * BLOCK_C
            stage = count % full.shape[0]
            mbarrier.wait(empty.index(stage), count // full.shape[0] & 1 ^ 1)
            bar = full.index(stage)
            mbarrier.expect(bar, x_desc.block_type.nbytes + edge_desc.block_type.nbytes)
            rows = reinterpreted(x_rows.index(stage * HEIGHT), x_desc.dtype, BOX, x_desc.layout)
            load_box(x_desc, [n, h - pad_h, column, band + c], bar, rows)
            rows = x_rows.index(stage * HEIGHT + BLOCK[1])
            rows = reinterpreted(rows, x_desc.dtype, EDGE, edge_desc.layout)
            row = h - pad_h + BLOCK[1]
            load_box(edge_desc, [n, row, column, band + c], bar, rows)

            stage = count % packed_full.shape[0]
            mbarrier.wait(packed_empty.index(stage), count // packed_full.shape[0] & 1 ^ 1)
            bar = packed_full.index(stage)
            mbarrier.expect(bar, R * packed_desc.block_type.nbytes)
            for r in gl.static_range(R):
                place = [k, r * packed_h + step // steps_c * packed_w + c]
                buf = packed_bufs.index(stage * R + r)
                load_box(packed_desc, place, bar, buf)
            count += 1


@gluon.jit
def load_tiles(
    x_desc, second_desc, packed_desc, x_bufs, packed_bufs, full, empty, packed_full, packed_empty,
    tiles, steps_c, taps, offsets, bands, BLOCK: gl.constexpr,
    ROWS: gl.constexpr, BANDS: gl.constexpr, BY_GROUP: gl.constexpr,
) -> None:  # fmt: skip
    """Load boxes of pixels, or rows where the taps of a column share them.

    `second_desc` loads the last of such rows, or at stride 2 odd columns.
    """
    if ROWS > 1:
        _load_rows(
            x_desc, second_desc, packed_desc, x_bufs, packed_bufs, full, empty, packed_full,
            packed_empty, tiles, steps_c, taps[1], offsets, bands, ROWS, BLOCK, BANDS,
        )  # fmt: skip
    else:
        _load_boxes(
            x_desc, second_desc, packed_desc, x_bufs, packed_bufs, full, empty, tiles, steps_c,
            taps, offsets, bands, BLOCK, BANDS, BY_GROUP,
        )  # fmt: skip
