"""Processes that compile have names in place of torch, and the same kernels."""

from importlib.util import find_spec

import pytest
import torch

from tests.support.scripts import run_compiler
from tvdnn.runtime.torch_names import import_kernels

WITHOUT_TORCH = """
from tvdnn.runtime.torch_names import import_kernels
import_kernels()
"""
KEYS = """
import sys
from tvdnn.runtime.kernel_set import jit_functions
for function in jit_functions():
    print(function.fn.__module__, function.fn.__qualname__, function.cache_key)
print(hasattr(sys.modules["torch"], "__version__"))
"""
NAMES = """
import torch
from torch.nn import functional
assert torch.ops.aten.relu is torch.ops.aten.relu and functional.relu is not torch.relu
assert {torch.float32: 1}[torch.float32] == 1 and torch.Tensor | None and list[torch.Tensor]
for ask in (torch.empty, lambda: bool(torch.version.hip), lambda: torch.finfo(torch.float32)):
    try:
        ask()
        raise SystemExit("something follows from a name")
    except TypeError as error:
        assert "of torch is a name alone in a process that compiles" in str(error)
"""


@pytest.mark.slow
def test_kernels_have_the_same_keys_without_torch() -> None:
    """The keys hold their code and constants, and those of all that they call."""
    *found, with_torch = run_compiler(KEYS).splitlines()
    *names, without = run_compiler(WITHOUT_TORCH + KEYS).splitlines()
    assert (with_torch, without) == ("True", "False")
    assert len(found) > 100
    assert names == found


def test_nothing_follows_from_a_name() -> None:
    run_compiler(WITHOUT_TORCH + NAMES)


def test_a_process_with_torch_keeps_it() -> None:
    assert torch.__version__
    import_kernels()
    assert find_spec("torch.no_such_module") is None
