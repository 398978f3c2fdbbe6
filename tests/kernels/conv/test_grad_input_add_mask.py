"""Data gradients that are the last term of a masked sum, against the passes that they stand for."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from tests.kernels.numerics import poisoned_like, randn, rms_error
from tvdnn.kernels.codec.sign_bits import packed_signs_reference
from tvdnn.kernels.conv import conv2d as conv
from tvdnn.kernels.conv import grad_input_add_mask as conv_grad_last
from tvdnn.kernels.conv.grad_input_add_mask import ONE_BY_ONE, may_be_last
from tvdnn.kernels.language.rounding import stored_reference

BF16, F32 = torch.bfloat16, torch.float32
TOLERANCES = {BF16: 4e-3, F32: 4e-4}
MASKS = ("bits", "raw")
MAPS = [((1, 1, 1), 64, 128), ((3, 8, 8), 64, 256), ((5, 5, 7), 192, 128), ((0, 4, 4), 64, 128)]
KINDS = [(BF16, "ieee"), (F32, "ieee"), (F32, "tf32")]  # of maps, and how their readers round them


@dataclass(frozen=True, slots=True)
class Case:
    dy: Tensor
    packed: Tensor
    added: Tensor
    y: Tensor

    @property
    def precision(self) -> str:
        return "ieee" if self.dy.dtype == BF16 else "tf32"

    def operands(self, mask: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The mask is the map itself, "raw", or its sign "bits"."""
        y = self.y if mask == "raw" else packed_signs_reference(self.y)
        return self.dy, self.packed, self.added, y


def make_case(
    sides: tuple[int, int, int],
    k: int,
    c: int,
    generator: torch.Generator,
    dtype: torch.dtype = BF16,
) -> Case:
    packed = stored_reference(randn((c, 1, 1, k), dtype, generator, k**-0.5), dtype, "tf32")
    dy, added, y = (randn((*sides, each), dtype, generator) for each in (k, c, c))
    y.relu_()[..., ::9] = torch.nan
    return Case(stored_reference(dy, dtype, "tf32"), packed, added, y)


@pytest.mark.parametrize("suffix", ["", "_reference"])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(("dtype", "out_precision"), KINDS)
@pytest.mark.parametrize(("sides", "k", "c"), MAPS)
def test_has_the_bits_of_passes_apart(
    sides: tuple[int, int, int], k: int, c: int, dtype: torch.dtype, out_precision: str, mask: str,
    suffix: str, generator: torch.Generator,
) -> None:  # fmt: skip
    case = make_case(sides, k, c, generator, dtype)
    found, term = poisoned_like(case.added), poisoned_like(case.added)
    how = {"precision": case.precision}
    launch = getattr(conv_grad_last, f"conv2d_grad_last{suffix}")
    launch(*case.operands(mask), found, **how, out_precision=out_precision)
    alone = getattr(conv, f"conv2d_grad_input{suffix}")
    alone(case.dy, case.packed, term, **ONE_BY_ONE, **how, out_precision="ieee")
    total = (case.added.float() + term.float()).to(dtype)
    passing = ~(case.y <= 0)
    exactly = torch.where(passing, total, 0.0)
    assert torch.equal(found, stored_reference(exactly, dtype, out_precision))
    exact = case.dy.double() @ case.packed.flatten(1).double().T + case.added.double()
    assert rms_error(found, exact * passing) <= TOLERANCES[dtype]


@pytest.mark.parametrize("suffix", ["", "_reference"])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dtype", [BF16, F32])
def test_cuts_do_not_show(
    dtype: torch.dtype, mask: str, suffix: str, generator: torch.Generator
) -> None:
    case = make_case((4, 5, 5), 64, 128, generator, dtype)
    launch = getattr(conv_grad_last, f"conv2d_grad_last{suffix}")
    whole, parts = poisoned_like(case.added), poisoned_like(case.added)
    dy, packed, *maps = case.operands(mask)
    launch(dy, packed, *maps, whole, precision=case.precision)
    for run in (slice(0, 1), slice(1, 4)):
        ranges = (each[run] for each in maps)
        launch(dy[run], packed, *ranges, parts[run], precision=case.precision)
    assert torch.equal(whole, parts)


def test_takes_single_taps_of_whole_tiles() -> None:
    how = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1, "dtype": BF16}
    assert may_be_last((64, 256, 1, 1), **how)
    assert not may_be_last((64, 256, 3, 3), **how)
    assert not may_be_last((64, 64, 1, 1), **how)
    assert not may_be_last((40, 256, 1, 1), **how)
    for other in ({"stride": (2, 2)}, {"groups": 2}, {"dtype": F32}):
        assert not may_be_last((64, 256, 1, 1), **how | other)
    how |= {"dtype": F32, "precision": "tf32"}
    assert may_be_last((64, 256, 1, 1), **how)
    assert may_be_last((32, 256, 1, 1), **how)
    assert not may_be_last((40, 256, 1, 1), **how)


@pytest.mark.gpu
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dtype", [BF16, F32])
def test_large_offsets(dtype: torch.dtype, mask: str, generator: torch.Generator) -> None:
    samples = (1 << 20) + 1
    dy = torch.zeros(samples, 4, 4, 64, dtype=dtype, device=generator.device)
    added, dx = (torch.empty(samples, 4, 4, 128, dtype=dtype, device=dy.device) for _ in range(2))
    last = make_case((1, 4, 4), 64, 128, generator, dtype)
    operands = last.operands(mask)
    signs = operands[3].new_ones(samples, *operands[3].shape[1:])
    dy[-1:], added[-1:], signs[-1:] = last.dy, last.added, operands[3]
    alone, how = poisoned_like(last.added), {"precision": last.precision}
    conv_grad_last.conv2d_grad_last(dy, last.packed, added, signs, dx, **how)
    conv_grad_last.conv2d_grad_last(*operands, alone, **how)
    assert torch.equal(dx[-1:], alone)
