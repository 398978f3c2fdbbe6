"""Kernel sets: every launcher has a reference of its name and its arguments."""

import inspect

import pytest

from tvdnn.errors import InputError
from tvdnn.runtime.kernel_set import kernel_set


def test_launchers_and_references_take_the_same_arguments() -> None:
    launchers, references = (vars(kernel_set(name)) for name in ("triton", "torch"))
    assert launchers.keys() == references.keys()
    assert {"conv2d", "linear", "max_pool2d", "sgd_partials", "sum_partials"} <= launchers.keys()
    for name, launcher in launchers.items():
        assert launcher is not references[name]
        assert inspect.signature(launcher) == inspect.signature(references[name]), name


def test_unknown_sets_are_refused() -> None:
    with pytest.raises(InputError, match="'numpy' are not known; choose triton or torch"):
        kernel_set("numpy")
