"""Forms: the bytes of codes, as the kernels have them, and which values may rest in which form."""

from dataclasses import replace
from math import prod

import pytest

from tvdnn.graph import (
    BITMAP,
    BITS,
    CODECS,
    FP8,
    FP10,
    FP16,
    RAW,
    SHARES,
    SSDC,
    TF32,
    Buffer,
    Fact,
    Form,
    Kind,
    capacity_of,
    fits,
    in_form,
    is_lossy,
    is_packed,
    may_rest_in,
    tail_of,
    with_share,
)
from tvdnn.kernels.codec.bitmap import bitmap_nbytes
from tvdnn.kernels.codec.fp10 import fp10_nbytes
from tvdnn.kernels.codec.ssdc import ssdc_nbytes
from tvdnn.kernels.codec.tf32 import tf32_nbytes

KERNELS = {"bitmap": (bitmap_nbytes, 0), "ssdc": (ssdc_nbytes, 1)}
BUFFERS = (
    Buffer("even", Kind.MAP, (8, 5, 5, 16), "float32", 4),
    Buffer("short last", Kind.MAP, (7, 3, 3, 64), "bfloat16", 4),
    Buffer("one row", Kind.MAP, (5, 9), "float32", 1),
    Buffer("few rows", Kind.MAP, (3, 20), "bfloat16", 8),
    Buffer("wide", Kind.MAP, (3, 64, 64, 4), "bfloat16", 2),
)
packed = pytest.mark.parametrize("form", [BITMAP, SSDC], ids=str)
buffers = pytest.mark.parametrize("buffer", BUFFERS, ids=lambda buffer: buffer.name)


def values_of(buffer: Buffer, section: int) -> int:
    start, stop = buffer.bounds(section)
    return (stop - start) * prod(buffer.shape[1:])


@packed
@buffers
@pytest.mark.parametrize("share", [0, 1, 37, 128, 255, SHARES])
def test_a_head_has_the_capacity_and_its_tail_all_other_values(
    buffer: Buffer, form: Form, share: int
) -> None:
    form = form._replace(share=share)
    nbytes, index_nbytes = KERNELS[form.codec]
    itemsize = {"float32": 4, "bfloat16": 2}[buffer.dtype]
    tail = tail_of(buffer, form)
    for section in range(buffer.num_sections):
        values = values_of(buffer, section)
        head = in_form(buffer, form).section_nbytes(section)
        capacity = capacity_of(buffer, section, form)
        assert capacity * SHARES >= values * share
        assert nbytes(values, itemsize, capacity) <= head
        packed_nbytes = itemsize + index_nbytes
        slack = head - nbytes(values, itemsize, capacity)
        assert slack < packed_nbytes or capacity == values
        left = 0 if tail is None else in_form(buffer, tail).section_nbytes(section)
        assert left // packed_nbytes + capacity >= values
        assert head % 16 == left % 16 == 0
    if share == SHARES:
        assert tail is None


@packed
def test_heads_and_tails_waste_little_of_large_sections(form: Form) -> None:
    buffer = Buffer("large", Kind.MAP, (16, 56, 56, 64), "bfloat16", 4)
    nbytes, index_nbytes = KERNELS[form.codec]
    form = with_share(form, 0.5)
    values = values_of(buffer, 0)
    capacity = capacity_of(buffer, 0, form)
    assert in_form(buffer, form).section_nbytes(0) < 1.001 * nbytes(values, 2, capacity)
    tail = tail_of(buffer, form)
    assert tail is not None
    left = (values - capacity) * (2 + index_nbytes)
    assert in_form(buffer, tail).section_nbytes(0) < 1.001 * left


@buffers
def test_a_tf32_code_has_the_bytes_of_the_kernel(buffer: Buffer) -> None:
    assert fits(buffer, TF32) == (buffer.name == "even")
    if fits(buffer, TF32):
        for section in range(buffer.num_sections):
            expected = tf32_nbytes(values_of(buffer, section))
            assert in_form(buffer, TF32).section_nbytes(section) == expected


@buffers
def test_lossy_codes_have_the_bytes_of_their_kernels(buffer: Buffer) -> None:
    """Rows of a section's FP10 code are padded to whole words."""
    assert fits(buffer, FP16) == (buffer.dtype == "float32")
    for section in range(buffer.num_sections):
        values = values_of(buffer, section)
        start, stop = buffer.bounds(section)
        sizes = {form: in_form(buffer, form).section_nbytes(section) for form in (FP16, FP10, FP8)}
        assert (sizes[FP16], sizes[FP8]) == (2 * values, values)
        assert fp10_nbytes(values) <= sizes[FP10] < fp10_nbytes(values) + 4 * (stop - start)


def test_only_inputs_and_maps_of_floats_have_lossy_codes() -> None:
    for kind in Kind:
        assert fits(replace(BUFFERS[0], kind=kind), FP8) == (kind in (Kind.INPUT, Kind.MAP))
    assert not fits(Buffer("labels", Kind.INPUT, (8, 4), "int64", 4), FP8)
    assert {form for form in map(Form, CODECS) if is_lossy(form)} == {FP16, FP10, FP8}
    assert not is_lossy(RAW)


def test_values_rest_in_tf32_only_where_they_are_known_to_fit_it() -> None:
    known = frozenset({Fact.TF32, Fact.NOT_NEGATIVE})
    even = replace(BUFFERS[0], facts=known)
    assert may_rest_in(even, TF32)
    for fact in known:
        assert fits(even, TF32)
        assert not may_rest_in(replace(even, facts=known - {fact}), TF32)
    assert may_rest_in(BUFFERS[0], BITMAP)
    assert may_rest_in(BUFFERS[0], RAW)


def test_forms_of_no_codec_fit_nothing() -> None:
    wrong = (
        Form("zip"),
        Form("raw", 3),
        BITS._replace(share=1),
        TF32._replace(tail=True),
        BITMAP._replace(share=SHARES + 1),
        BITMAP._replace(share=-1),
        BITMAP._replace(share=SHARES, tail=True),
    )
    for form in wrong:
        assert not fits(BUFFERS[0], form)
    assert fits(BUFFERS[0], BITMAP._replace(share=SHARES))
    assert not fits(Buffer("labels", Kind.INPUT, (8, 4), "int64", 4), BITMAP)


def test_names_say_capacity_and_part() -> None:
    half = with_share(BITMAP, 0.5)
    assert [str(form) for form in (RAW, BITS, half, half._replace(tail=True))] == [
        "raw",
        "bits",
        "bitmap 128/256",
        "tail of bitmap 128/256",
    ]
    assert [is_packed(form) for form in (RAW, BITS, TF32, half, SSDC)] == [False] * 3 + [True] * 2
    assert with_share(BITMAP, 0.0).share == 0
    assert with_share(BITMAP, 0.001).share == 1
    assert with_share(BITMAP, 7.0).share == SHARES
