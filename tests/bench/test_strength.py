"""The faults that measure the generator of random networks fit the code that they change."""

import pytest

from bench.generated.seeded import FAULTS, Fault
from bench.generated.strength import codes_with


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_seeded_fault_changes_the_code_of_a_function(fault: Fault) -> None:
    assert all(function.__code__ != code for function, code in codes_with(fault))


def test_a_fault_whose_text_is_gone_is_told() -> None:
    with pytest.raises(ValueError, match="0 times"):
        codes_with(Fault("gone", FAULTS[0].file, "no such text", "", ""))
