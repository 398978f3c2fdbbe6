"""Kernel sets: every launcher has a reference of its name and its arguments."""

import inspect
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from tests.support.lowered import lower
from tests.support.scripts import run_compiler
from tests.support.simulated import h200
from tests.support.straight import convolutions, straight_plan
from tvdnn.errors import InputError
from tvdnn.runtime.check_encoders import check_encoders
from tvdnn.runtime.kernel_set import kernel_set


def test_launchers_and_references_take_the_same_arguments() -> None:
    launchers, references = (vars(kernel_set(name)) for name in ("triton", "torch"))
    assert launchers.keys() == references.keys()
    assert {"conv2d", "linear", "max_pool2d", "sgd_partials", "sum_partials"} <= launchers.keys()
    for name, launcher in launchers.items():
        assert launcher is not references[name]
        assert inspect.signature(launcher) == inspect.signature(references[name]), name


COMPILED = """
import torch
from triton.runtime import driver
from bench.offline.compiler import OfflineDriver, compiled_kernels
from tvdnn.kernels.pointwise.activation import activate

driver.set_active(OfflineDriver(90))
x = torch.empty(1 << 16, device="meta")
with compiled_kernels() as kernels:
    activate(x, x, function="silu")
assert kernels and all(each.kernel.metadata.enable_fp_fusion for each in kernels), kernels
"""


def test_multiply_adds_are_fused_whatever_tritons_default_is(tmp_path: Path) -> None:
    """Triton reads its default from the environment from 3.9 on."""
    run_compiler(COMPILED, TRITON_DEFAULT_FP_FUSION="0", TRITON_CACHE_DIR=str(tmp_path))


def test_unknown_sets_are_refused() -> None:
    with pytest.raises(InputError, match="'numpy' are not known; choose triton or torch"):
        kernel_set("numpy")


@pytest.mark.parametrize(("zero_copy", "refused"), [(True, True), (False, False)])
def test_references_on_a_gpu_encode_nothing_straight_to_the_host(
    *, zero_copy: bool, refused: bool
) -> None:
    _, graph = convolutions(dtype="tf32")
    schedule = lower(graph, straight_plan(graph, zero_copy=zero_copy), h200(graph))
    check_encoders(schedule, "triton", torch.device("cuda"))
    check_encoders(schedule, "torch", torch.device("cpu"))
    with pytest.raises(InputError, match="zero_copy") if refused else nullcontext():
        check_encoders(schedule, "torch", torch.device("cuda"))
