"""Batch normalization's kernels against their references, and these against torch in float64."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tests.kernels.norm.batch_norm_launchers import EPS, MOMENTUM, TOLERANCE, launchers
from tests.kernels.numerics import poisoned, poisoned_like, randn, rms_error
from tvdnn.kernels.codec.sign_bits import passes_reference
from tvdnn.kernels.norm import batch_norm
from tvdnn.kernels.norm.batch_norm_tiles import batch_norm_plan, slice_ranges
from tvdnn.kernels.pointwise import activation

SHAPES = [(3, 5, 7, 12), (40, 3, 3, 7), (700, 70), (2, 36, 36, 20), (7, 1, 1, 1)]
HOWS = {
    "plain": {},
    "affine": {"affine": True},
    "relu": {"affine": True, "function": "relu"},
    "residual": {"residual": True, "function": "relu"},
    "term": {"term": True, "function": "relu"},
    "term of a residual": {"residual": True, "term": True, "function": "relu"},
}


@dataclass(frozen=True, slots=True)
class Case:
    """Maps to normalize, and the settings."""

    x: Tensor
    dy: Tensor
    weight: Tensor | None
    bias: Tensor | None
    residual: Tensor | None
    term: Tensor | None
    function: str


def make_case(
    shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator, **how: Any
) -> Case:
    """Maps whose mean is a hundred times their deviation in the first channel."""
    channels = shape[-1]
    x = randn(shape, torch.float32, generator, 2.0)
    x[..., 0] += 200.0 if dtype == torch.float32 else 4.0
    weight, bias = (randn((channels,), torch.float32, generator) for _ in range(2))
    return Case(
        x.to(dtype),
        randn(shape, dtype, generator),
        weight if how.get("affine") else None,
        bias if how.get("affine") else None,
        randn(shape, dtype, generator) if how.get("residual") else None,
        randn(shape, dtype, generator) if how.get("term") else None,
        how.get("function", ""),
    )


def run(case: Case, suffix: str) -> dict[str, Tensor]:
    """All that the kernels, or the references, make of the case in training."""
    kernels, x = launchers(suffix), case.x
    plan, channels = batch_norm_plan(x.shape), x.shape[-1]
    partials = poisoned(plan.partials_shape(x.shape[0], channels), torch.float32, x.device)
    statistics = poisoned((3, channels), torch.float32, x.device)
    running = torch.zeros(channels, device=x.device), torch.ones(channels, device=x.device)
    count = torch.tensor(4, device=x.device)
    cut = {"group": plan.group}
    kernels["batch_norm_moments"](x, partials, **cut)
    settings: dict[str, Any] = {"shape": tuple(x.shape), "momentum": MOMENTUM, "eps": EPS, **cut}
    kernels["batch_norm_statistics"](partials, statistics, *running, count, **settings)
    affine, y = (case.weight, case.bias), poisoned_like(x)
    kernels["batch_norm"](x, statistics, *affine, case.residual, y, function=case.function)
    masked = None if case.residual is None and case.term is None else poisoned_like(x)
    by = None if case.residual is None else y
    sums = (x, case.dy, case.term, statistics, *affine, by, partials, masked)
    kernels["grad_sums"](*sums, function=case.function, **cut)
    dweight, dbias = (poisoned((channels,), torch.float32, x.device) for _ in range(2))
    kernels["grad_params"](partials, statistics, dweight, dbias)
    dx, dy = poisoned_like(x), case.dy if masked is None else masked
    how = {"rows": x.numel() // channels, "function": case.function if masked is None else ""}
    kernels["grad_input"](x, dy, statistics, *affine, dweight, dbias, dx, **how)
    found = {"y": y, "dx": dx, "dweight": dweight, "dbias": dbias, "count": count}
    found |= {"mean": running[0], "variance": running[1]}
    return found if case.residual is None else found | {"residual": masked}


def exact(case: Case, passed: Tensor) -> dict[str, Tensor]:
    """Torch's results in float64. The ReLU passes the elements `passed`."""
    x, dy = case.x.double().requires_grad_(), case.dy
    dy = (dy if case.term is None else dy + case.term).double()
    channels = x.shape[-1]
    ones = torch.ones(channels, dtype=torch.float64, device=x.device)
    weight = ones.clone() if case.weight is None else case.weight.double()
    bias = 0 * ones if case.bias is None else case.bias.double()
    running = 0 * ones, ones.clone()
    affine = weight.requires_grad_(), bias.requires_grad_()
    rows = (x.reshape(-1, channels), *running, *affine)
    y = functional.batch_norm(*rows, True, MOMENTUM, EPS).view_as(x)
    found = {}
    if case.residual is not None:
        residual = case.residual.double().requires_grad_()
        found["residual"] = residual
        y = y + residual
    y = y * passed if case.function else y
    y.backward(dy)
    found = {name: leaf.grad for name, leaf in found.items()}
    found |= {"y": y.detach(), "dx": x.grad, "dweight": weight.grad, "dbias": bias.grad}
    count = torch.tensor(5, device=x.device)
    return found | {"mean": running[0], "variance": running[1], "count": count}


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize(
    ("shape", "how"), [*zip(SHAPES, HOWS, strict=False), ((4, 3, 3, 40), "term of a residual")]
)
def test_follows_torch(
    shape: tuple[int, ...], dtype: torch.dtype, how: str, generator: torch.Generator
) -> None:
    case = make_case(shape, dtype, generator, **HOWS[how])
    for suffix in ("", "_reference"):
        found = run(case, suffix)
        expected = exact(case, found["y"] > 0)
        for name, value in found.items():
            tolerance = TOLERANCE[dtype] + rounding_of_means(case.x)
            assert rms_error(value, expected[name]) <= tolerance, (suffix, name)


def rounding_of_means(x: Tensor) -> float:
    """The error of float32 means in deviations, which is all that a single channel shows."""
    rows = x.double().flatten(0, -2)
    return 2.0**-24 * float((rows.mean(0).abs() / rows.std(0)).max())


@pytest.mark.parametrize("how", ["relu", "term of a residual"])
def test_kernels_equal_references(how: str, generator: torch.Generator) -> None:
    case = make_case((5, 6, 6, 40), torch.bfloat16, generator, **HOWS[how])
    ours, wanted = run(case, ""), run(case, "_reference")
    for name, value in ours.items():
        assert rms_error(value, wanted[name]) <= TOLERANCE[torch.bfloat16], name


@pytest.mark.parametrize("suffix", ["", "_reference"])
def test_ranges_of_wider_maps(suffix: str, generator: torch.Generator) -> None:
    """Maps at a pitch give the results of contiguous ones. Nothing beside the range is written."""
    case = make_case((5, 3, 3, 24), torch.bfloat16, generator, **HOWS["residual"])
    statistics = torch.rand(3, 24, generator=generator, device=case.x.device)
    kernels, plan = launchers(suffix), batch_norm_plan(case.x.shape)

    def wide(narrow: Tensor) -> Tensor:
        maps = poisoned((5, 3, 3, 40), narrow.dtype, narrow.device)[..., 8:32]
        return maps.copy_(narrow)

    def run_on(place: Callable[[Tensor], Tensor]) -> list[Tensor]:
        x, dy, residual = (place(each) for each in (case.x, case.dy, case.residual))
        y, masked, dx = (place(poisoned_like(case.x)) for _ in range(3))
        partials = poisoned((*plan.partials_shape(5, 24),), torch.float32, x.device)
        affine = (statistics[0], statistics[1])
        kernels["batch_norm"](x, statistics, *affine, residual, y, function="relu")
        sums = (x, dy, residual, statistics, *affine, y, partials, masked)
        kernels["grad_sums"](*sums, group=plan.group, function="relu")
        kernels["grad_input"](x, masked, statistics, *affine, *affine, dx, rows=45)
        return [partials, y, masked, dx]

    for ours, theirs in zip(run_on(wide), run_on(lambda narrow: narrow), strict=True):
        assert torch.equal(ours, theirs)
        if ours.dim() == 4 and ours.dtype == torch.bfloat16:
            around = ours.as_strided((5, 3, 3, 40), (360, 120, 40, 1), 0)
            assert around[..., :8].isnan().all()
            assert around[..., 32:].isnan().all()


@pytest.mark.parametrize("suffix", ["", "_reference"])
@pytest.mark.parametrize("shape", [(5, 6, 6, 96), (3, 5, 7, 24), (700, 8)])
def test_signs_mask_as_the_output_does(
    shape: tuple[int, ...], suffix: str, generator: torch.Generator
) -> None:
    """Also where it is NaN, beside maps at a pitch, and where the bits are a range of others."""
    case = make_case(shape, torch.bfloat16, generator, **HOWS["term of a residual"])
    channels, kernels, plan = shape[-1], launchers(suffix), batch_norm_plan(shape)
    statistics = torch.rand(3, channels, generator=generator, device=case.x.device)
    operands, y = (statistics, case.weight, case.bias), poisoned_like(case.x)
    assert case.residual is not None
    case.residual[-1, ..., 0] = torch.nan
    signs = torch.full((*shape[:-1], channels // 8), 0xAA, dtype=torch.uint8, device=y.device)
    kernels["batch_norm"](case.x, *operands, case.residual, y, signs, function="relu")
    assert torch.equal(passes_reference(signs), ~(y <= 0))
    wide = torch.full((*shape[:-1], channels // 8 + 8), 0x55, dtype=torch.uint8, device=y.device)
    aligned, odd = wide[..., 4:-4].copy_(signs), wide.clone()[..., 3:-5]
    odd.copy_(signs)
    found = []
    for mask in (y, signs, aligned, odd):
        partials = poisoned(plan.partials_shape(shape[0], channels), torch.float32, y.device)
        total = poisoned((*shape[:-1], channels + 8), torch.bfloat16, y.device)[..., :channels]
        sums = (case.x, case.dy, case.term, *operands, mask, partials, total)
        kernels["grad_sums"](*sums, group=plan.group, function="relu")
        found.append([partials, total])
    for values, *by_bits in zip(*found, strict=True):
        assert all(torch.equal(each, values) for each in by_bits)


@pytest.mark.parametrize("suffix", ["", "_reference"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_residuals_are_normalized_as_they_are_apart(
    dtype: torch.dtype, suffix: str, generator: torch.Generator
) -> None:
    case = make_case((3, 5, 7, 20), dtype, generator, affine=True, residual=True)
    by, other = (torch.rand(3, 20, generator=generator, device=case.x.device) for _ in range(2))
    residual, found, apart = (poisoned_like(case.x) for _ in range(3))
    normalize = launchers(suffix)["batch_norm"]
    operands, affine = (case.x, other, case.weight, case.bias), (case.bias, None)
    normalize(*operands, case.residual, found, function="relu", residual_by=(by, *affine))
    normalize(case.residual, by, *affine, None, residual)
    normalize(*operands, residual, apart, function="relu")
    assert torch.equal(found, apart)


@pytest.mark.parametrize("suffix", ["", "_reference"])
def test_sums_for_another_map_are_those_apart(suffix: str, generator: torch.Generator) -> None:
    case = make_case((40, 3, 3, 24), torch.bfloat16, generator, residual=True, term=True)
    plan, add = batch_norm_plan(case.x.shape), launchers(suffix)["grad_sums"]
    statistics, other = (torch.rand(3, 24, generator=generator, device=case.x.device) for _ in "ab")
    sums = [poisoned(plan.partials_shape(40, 24), torch.float32, case.x.device) for _ in range(4)]
    grads = [poisoned_like(case.x) for _ in range(2)]
    operands = (case.x, case.dy, case.term, statistics, None, None, case.x)
    beside = (case.residual, other, sums[1])
    add(*operands, sums[0], grads[0], group=plan.group, residual=beside)
    add(*operands, sums[2], grads[1], group=plan.group)
    add(case.residual, grads[1], None, other, None, None, None, sums[3], None, group=plan.group)
    assert torch.equal(*grads)
    assert torch.equal(sums[0], sums[2])
    assert torch.equal(sums[1], sums[3])


@pytest.mark.parametrize("suffix", ["", "_reference"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_adds_to_a_gradient_in_place(
    dtype: torch.dtype, suffix: str, generator: torch.Generator
) -> None:
    """The maps are a range of a wider map, and a sum follows."""
    x, dy = (randn((3, 5, 7, 12), dtype, generator) for _ in range(2))
    statistics, affine = (torch.rand(3, 12, generator=generator, device=x.device) for _ in range(2))
    wide = randn((3, 5, 7, 20), dtype, generator)
    operands = (x, dy, statistics, affine[0], None, affine[1], affine[2])
    dx, expected = poisoned_like(x), wide.clone()
    kernels = launchers(suffix)
    kernels["grad_input"](*operands, dx, rows=105)
    expected[..., 4:16] += dx
    kernels["grad_input"](*operands, wide[..., 4:16], rows=105, added=wide[..., 4:16])
    assert torch.equal(wide, expected)


@pytest.mark.parametrize("function", activation.FUNCTIONS)
@pytest.mark.parametrize("suffix", ["", "_reference"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_functions_have_the_bits_that_they_have_apart(
    dtype: torch.dtype, suffix: str, function: str, generator: torch.Generator
) -> None:
    """The function reads normalized maps forward. Backward they are computed again."""
    case = make_case((4, 3, 3, 24), dtype, generator, affine=True)
    statistics = torch.rand(3, 24, generator=generator, device=case.x.device) + 0.5
    operands, kernels = (statistics, case.weight, case.bias), launchers(suffix)
    how: dict[str, Any] = {"function": function, "coefficient": 0.3}
    z, apart, joined = (poisoned_like(case.x) for _ in range(3))
    kernels["batch_norm"](case.x, *operands, None, z)
    getattr(activation, f"activate{suffix}")(z, apart, **how)
    kernels["batch_norm"](case.x, *operands, None, joined, **how)
    assert torch.equal(joined, apart)
    dz, total = poisoned_like(z), poisoned_like(z)
    read = apart if function in activation.BY_OUTPUT else z
    getattr(activation, f"activate_grad{suffix}")(read, case.dy, dz, **how)
    plan = batch_norm_plan(z.shape)
    sums = [poisoned(plan.partials_shape(4, 24), torch.float32, z.device) for _ in range(2)]
    add = partial(kernels["grad_sums"], group=plan.group)
    add(case.x, dz, None, *operands, None, sums[0], None)
    add(case.x, case.dy, None, *operands, None, sums[1], total, **how)
    assert torch.equal(total, dz)
    assert torch.equal(*sums)
    ways = [poisoned_like(z) for _ in range(2)]
    behind = (*operands, *statistics[1:])
    kernels["grad_input"](case.x, dz, *behind, ways[0], rows=36)
    kernels["grad_input"](case.x, case.dy, *behind, ways[1], rows=36, **how)
    assert torch.equal(*ways)


def test_slices_cover_every_row_once() -> None:
    for shape in [*SHAPES, (9, 60, 60, 4), (5000, 3), (300, 40, 40, 8)]:
        plan = batch_norm_plan(shape)
        partials = torch.empty(plan.partials_shape(shape[0], shape[-1]), device="meta")
        ranges = slice_ranges(shape, partials, plan.group)
        rows = [row for start, stop in ranges for row in range(start, stop)]
        assert rows == list(range(len(rows)))
        assert len(rows) * shape[-1] == torch.empty(shape, device="meta").numel()


@pytest.mark.parametrize("suffix", ["", "_reference"])
def test_cuts_do_not_show(suffix: str, generator: torch.Generator) -> None:
    """A launch over some groups makes the sums that one over all of them makes."""
    x = randn((10, 6, 6, 24), torch.float32, generator)
    plan = batch_norm_plan(x.shape)
    assert plan.group == 8
    whole = poisoned(plan.partials_shape(10, 24), torch.float32, x.device)
    parts = poisoned_like(whole)
    moments = launchers(suffix)["batch_norm_moments"]
    moments(x, whole, group=plan.group)
    moments(x[:8], parts[:1], group=plan.group)
    moments(x[8:], parts[1:], group=plan.group)
    assert torch.equal(whole, parts)


@pytest.mark.gpu
def test_large_offsets(generator: torch.Generator) -> None:
    large = torch.ones((1 << 20) + 1, 6, 6, 64, dtype=torch.bfloat16, device=generator.device)
    large[-1] = randn((6, 6, 64), torch.bfloat16, generator, 3.0)
    statistics = torch.rand(3, 64, generator=generator, device=large.device)
    y, last = poisoned_like(large), poisoned_like(large[-1:])
    batch_norm.batch_norm(large, statistics, None, None, None, y, function="relu")
    batch_norm.batch_norm(large[-1:].clone(), statistics, None, None, None, last, function="relu")
    assert torch.equal(y[-1:], last)
    plan = batch_norm_plan(large.shape)
    partials = poisoned(plan.partials_shape(len(large), 64), torch.float32, large.device)
    batch_norm.batch_norm_moments(large, partials, group=plan.group)
    group = len(large) % plan.group
    alone = poisoned_like(partials[-1:])
    batch_norm.batch_norm_moments(large[-group:].clone(), alone, group=plan.group)
    assert torch.equal(partials[-1:], alone)
