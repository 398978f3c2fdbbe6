"""Every kernel launcher has a launch here, writes all of its outputs, and repeats to the bit."""

import pytest
import torch

from tests.kernels.numerics import assert_repeatable
from tests.support.launches import LAUNCHES, Operands, Size, launcher_of, launchers

SMALL, LARGE = Size(2, 8, 32), Size(64, 56, 128)


def test_every_launcher_has_a_launch() -> None:
    assert {launcher_of(name) for name in LAUNCHES} == launchers()


@pytest.mark.parametrize("name", LAUNCHES)
def test_a_launch_writes_all_of_its_outputs(name: str, generator: torch.Generator) -> None:
    launch = LAUNCHES[name](Operands(SMALL, generator))
    launch.run()
    for output in launch.outputs:
        assert not output.isnan().any()


@pytest.mark.gpu
@pytest.mark.parametrize("name", LAUNCHES)
def test_twenty_launches_beside_copies_and_products_have_the_same_bits(
    name: str, generator: torch.Generator
) -> None:
    launch = LAUNCHES[name](Operands(LARGE, generator))
    assert_repeatable(launch.run, *launch.outputs)
