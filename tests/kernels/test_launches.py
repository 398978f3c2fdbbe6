"""Every kernel's case: launches write the references' results, whole and nothing beside."""

from collections.abc import Iterator
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from bench.cases.case import KernelCase, kernel_cases
from bench.cases.launch import Launch, Settings
from bench.cases.operands import Operands, Shape, Written
from tests.kernels.numerics import assert_repeatable, rms_error
from tvdnn.kernels.language.cost import Cost
from tvdnn.runtime.kernel_set import kernel_set

SMALL, ODD, LARGE = (2, 8, 8, 32), (3, 5, 7, 19), (64, 56, 56, 128)
UNEVEN = (64, 56, 56, 72)  # channels of which Triton knows less than of multiples of 16
MARGIN = 4096
TOLERANCES = {torch.float32: 2e-6, torch.bfloat16: 5e-3}


class Check(NamedTuple):
    """Settings with which a case is launched."""

    case: KernelCase
    name: str
    settings: Settings

    def __str__(self) -> str:
        return f"{self.case.name}, {self.name}" if self.name else self.case.name

    def made(self, size: Shape, generator: torch.Generator) -> tuple[Operands, Launch]:
        operands = Operands(generator.device, generator, MARGIN)
        launch = self.case.make(operands, size, **self.settings)
        launch.prepare()
        return operands, launch


def checks() -> Iterator[Check]:
    for case in kernel_cases():
        for name, settings in case.checked.items():
            yield Check(case, name, settings)


CHECKS = list(checks())
SIZED = [(each, SMALL) for each in CHECKS] + [(each, ODD) for each in CHECKS if each.case.odd]


def test_every_launcher_has_a_case_that_is_compiled() -> None:
    names = {*vars(kernel_set("triton"))}
    assert {case.name for case in kernel_cases()} == names
    assert {case.name for case in kernel_cases() if case.compiled} == names


def test_every_check_has_a_name_of_its_own() -> None:
    assert len({*map(str, CHECKS)}) == len(CHECKS)


@pytest.mark.parametrize(
    ("check", "size"), SIZED, ids=[f"{check}, {'x'.join(map(str, size))}" for check, size in SIZED]
)
def test_launches_write_what_references_say_and_nothing_beside(
    check: Check, size: Shape, generator: torch.Generator
) -> None:
    operands, launch = check.made(size, generator)
    assert operands.written
    launch.run()
    found = [each.buffer.clone() for each in operands.written]
    for each in operands.written:
        assert is_poisoned_beside(each)
        assert not each.part(each.tensor).isnan().any()
    if any(not each.buffer.dtype.is_floating_point for each in operands.written):
        operands.reset(1)
        launch.run()  # integers left unwritten, which show no poison, differ from before
        for each, before in zip(operands.written, found, strict=True):
            assert torch.equal(each.part(each.tensor), each.part(in_buffer(each, before)))
    operands.reset(0)
    for call in launch.calls:
        call.run_reference()
    for each, before in zip(operands.written, found, strict=True):
        ours, theirs = (each.compared(each.part(t)) for t in (in_buffer(each, before), each.tensor))
        if ours.dtype.is_floating_point:
            most = max(TOLERANCES[ours.dtype], check.case.tolerance)
            error = rms_error(ours, theirs)
            assert error <= most
        else:
            assert torch.equal(ours, theirs)


def in_buffer(written: Written, buffer: Tensor) -> Tensor:
    """The tensor as another buffer of its layout holds it."""
    tensor = written.tensor
    return buffer.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def is_poisoned_beside(written: Written) -> bool:
    """Whether the buffer holds only poison outside of the launch's outputs."""
    beside = torch.ones_like(written.buffer, dtype=torch.bool)
    written.part(in_buffer(written, beside)).fill_(False)
    around = written.buffer[beside]
    if around.dtype.is_floating_point:
        return bool(around.isnan().all())
    return bool((around == torch.iinfo(around.dtype).max).all())


@pytest.mark.gpu
@pytest.mark.parametrize("size", [LARGE, UNEVEN], ids=["large", "uneven"])
@pytest.mark.parametrize("check", CHECKS, ids=str)
def test_twenty_launches_beside_copies_and_products_have_the_same_bits(
    check: Check, size: Shape, generator: torch.Generator
) -> None:
    operands, launch = check.made(size, generator)

    def run() -> None:
        operands.restore()
        launch.run()

    assert_repeatable(run, *(each.part(each.tensor) for each in operands.written))


def test_every_launch_has_a_cost() -> None:
    for case in kernel_cases():
        for at in case.compiled[:1]:
            launch = case.make(Operands(torch.device("meta")), at.size, **at.settings)
            costs = [call.cost for call in launch.calls]
            assert all(isinstance(each, Cost) and each.nbytes > 0 for each in costs), case.name
