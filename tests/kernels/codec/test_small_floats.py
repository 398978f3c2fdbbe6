"""Small floats: codes are those of the nearest value, ties to even, by a table of all values."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from tvdnn.kernels.codec import fp8, fp10, fp16
from tvdnn.kernels.language.rounding import NAN

Values = npt.NDArray[np.float64]
Coder = Callable[[Tensor, Tensor], None]


class Format(NamedTuple):
    """A float format, by its definition, and the launchers of its codes."""

    name: str
    exponent: int  # bits
    mantissa: int  # bits
    largest: float
    encodes: tuple[Coder, Coder]
    decodes: tuple[Coder, Coder]
    dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.bfloat16)

    def __str__(self) -> str:
        return self.name

    def values(self) -> Values:
        """The values of the codes 0, 1, 2 and so on that are neither negative nor NaN."""
        bias = (1 << (self.exponent - 1)) - 1
        found = []
        for code in range(1 << (self.exponent + self.mantissa)):
            field, steps = code >> self.mantissa, code & ((1 << self.mantissa) - 1)
            steps += bool(field) << self.mantissa
            found.append(steps * 2.0 ** (max(field, 1) - bias - self.mantissa))
        return np.array([each for each in found if each <= self.largest])

    def rounded(self, x: Tensor) -> Values:
        """The nearest value to each, of two as near the one of the even code; NaN stays NaN."""
        table, wide = self.values(), x.double().numpy()
        size = np.minimum(np.abs(wide), self.largest)
        above = np.searchsorted(table, np.nan_to_num(size)).clip(1, len(table) - 1)
        low, high = table[above - 1], table[above]
        far, near = size - low, high - size
        up = (near < far) | ((near == far) & (above % 2 == 0))
        return np.where(np.isnan(wide), np.nan, np.copysign(np.where(up, high, low), wide))


FORMATS = (
    Format(
        "fp8",
        4,
        3,
        448.0,
        (fp8.fp8_encode, fp8.fp8_encode_reference),
        (fp8.fp8_decode, fp8.fp8_decode_reference),
    ),
    Format(
        "fp10",
        5,
        4,
        122880.0,
        (fp10.fp10_encode, fp10.fp10_encode_reference),
        (fp10.fp10_decode, fp10.fp10_decode_reference),
    ),
    Format(
        "fp16",
        5,
        10,
        65504.0,
        (fp16.fp16_encode, fp16.fp16_encode_reference),
        (fp16.fp16_decode, fp16.fp16_decode_reference),
        (torch.float32,),
    ),
)
TYPED = [(each, dtype) for each in FORMATS for dtype in each.dtypes]
typed = pytest.mark.parametrize(("format_", "dtype"), TYPED, ids=str)


def nbytes(format_: Format, numel: int) -> int:
    return {"fp8": numel, "fp10": fp10.fp10_nbytes(numel), "fp16": 2 * numel}[format_.name]


def hard_values(format_: Format, dtype: torch.dtype) -> Tensor:
    """All values of bfloat16; in float32 the middles between codes and their neighbours too."""
    patterns = torch.arange(1 << 16, dtype=torch.int32)
    all_short = patterns.to(torch.int16).view(torch.bfloat16)
    if dtype == torch.bfloat16:
        return all_short
    table = torch.from_numpy(format_.values())
    middles = torch.cat([(table[1:] + table[:-1]) / 2, table]).float()
    around = [middles.nextafter(torch.tensor(end)) for end in (0.0, torch.inf)]
    random = torch.randint(-(2**31), 2**31, (1 << 16,), generator=torch.Generator().manual_seed(0))
    spread = random.to(torch.int32).view(torch.float32)
    edges = torch.tensor([format_.largest * factor for factor in (1.01, 1.05, 2.0)])
    positive = torch.cat([middles, *around, edges])
    return torch.cat([all_short.float(), positive, -positive, spread])


def coded(format_: Format, encode: Coder, raw: Tensor) -> Tensor:
    """The code of a section. Nothing beside it is written."""
    size = nbytes(format_, raw.numel())
    found = torch.full((size + 16,), 0xA5, dtype=torch.uint8, device=raw.device)
    encode(raw, found[:size])
    assert (found[size:] == 0xA5).all()
    return found[:size]


def decoded(decode: Coder, code: Tensor, like: Tensor) -> Tensor:
    found = torch.full((like.numel() + 16,), 7.0, dtype=like.dtype, device=like.device)
    decode(code, found[: like.numel()])
    assert (found[like.numel() :] == 7.0).all()
    return found[: like.numel()]


@typed
def test_values_are_rounded_to_the_nearest(
    format_: Format, dtype: torch.dtype, device: torch.device
) -> None:
    """Signs of zeros are kept, infinities and large values become the largest, NaN is NAN."""
    raw = hard_values(format_, dtype).to(device)
    expected = torch.from_numpy(format_.rounded(raw.cpu()))
    codes = [coded(format_, encode, raw) for encode in format_.encodes]
    assert torch.equal(*codes)
    for decode in format_.decodes:
        found = decoded(decode, codes[0], raw).cpu()
        nans = found.isnan()
        assert torch.equal(nans, expected.isnan())
        assert torch.equal(found.double()[~nans], expected[~nans])
        assert torch.equal(found.signbit()[~nans], raw.cpu().signbit()[~nans])
        assert (found[nans].float().view(torch.int32) == NAN.value).all()


@typed
def test_every_code_comes_back(format_: Format, dtype: torch.dtype, device: torch.device) -> None:
    """Encoding what a code says gives the code."""
    table = torch.from_numpy(format_.values())
    nan = torch.tensor([torch.nan], dtype=torch.float64)
    raw = torch.cat([table, -table, nan]).to(dtype).to(device)
    for encode, decode in zip(format_.encodes, format_.decodes, strict=True):
        code = coded(format_, encode, raw)
        again = decoded(decode, code, raw)
        assert torch.equal(again[:-1], raw[:-1])
        assert torch.equal(coded(format_, encode, again), code)


@typed
@pytest.mark.parametrize("numel", [0, 1, 2, 3, 4, 4095, 6144, 6145, 6146, 6147, 20000])
def test_sections_of_any_length(
    format_: Format, dtype: torch.dtype, numel: int, device: torch.device
) -> None:
    raw = torch.randn(numel, generator=torch.Generator().manual_seed(numel)).to(dtype).to(device)
    codes = [coded(format_, encode, raw) for encode in format_.encodes]
    assert torch.equal(*codes)
    expected = torch.from_numpy(format_.rounded(raw.cpu()))
    for decode in format_.decodes:
        assert torch.equal(decoded(decode, codes[0], raw).cpu().double(), expected)
