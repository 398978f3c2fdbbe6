"""Gluon's forms by version, the devices that run its kernels, and its refusal elsewhere."""

import warnings
from collections.abc import Iterator
from functools import cache
from types import SimpleNamespace

import pytest
from triton.runtime.errors import TritonError

from tests.support.scripts import run_compiler
from tvdnn.kernels.language import gluon

UNTESTED = "3.10.0"
CHOICES = """
import os, sys, warnings
import torch, triton
from triton.runtime import driver

def tell():
    from bench.offline.compiler import OfflineDriver
    from tvdnn.kernels.language import gluon
    gluon.RELEASES = ()  # the small kernel is compiled
    chosen = []
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for arch in (80, 86, 89, 90, 100, 103, 120):
            driver.set_active(OfflineDriver(arch))
            chosen += [arch] * gluon.available()
        driver.set_active(OfflineDriver(90))
        gluon.available()
    of_gluon = [str(each.message) for each in warned if "Gluon" in str(each.message)]
    print(chosen, of_gluon, flush=True)

for version in (triton.__version__, sys.argv[1]):
    if os.fork() == 0:
        triton.__version__ = version
        tell()
        os._exit(0)
    assert os.wait()[1] == 0
"""

ASSEMBLERS = """
import os, shutil, tempfile
for name in ("TRITON_PTXAS_PATH", "PTXAS_OPTIONS"):
    os.environ.pop(name, None)
from triton import knobs
from tvdnn.kernels.language import gluon
print(gluon._assembles_alone())
with tempfile.TemporaryDirectory() as folder:
    os.environ["TRITON_PTXAS_PATH"] = shutil.copy(knobs.nvidia.ptxas.path, folder)
    print(gluon._assembles_alone())
del os.environ["TRITON_PTXAS_PATH"]
os.environ["PTXAS_OPTIONS"] = "-O1"
print(gluon._assembles_alone())
"""


@cache
def choices() -> list[str]:
    """The architectures that Gluon's kernels are chosen on, and the warnings about Gluon.

    With this version of Triton and with one that is not tested: two processes, of one that has
    imported torch.
    """
    return run_compiler(CHOICES, UNTESTED).splitlines()


@pytest.fixture
def on_hopper(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """A device of compute capability 9.0, on which nothing has been tried."""
    monkeypatch.setattr(gluon, "capability", lambda: (9, 0))
    monkeypatch.setattr(gluon, "has_driver", lambda: True)
    monkeypatch.setattr(gluon, "RELEASES", ())
    gluon._usable.cache_clear()
    yield monkeypatch
    gluon._usable.cache_clear()


def test_this_version_has_its_form() -> None:
    assert gluon.version() in gluon.FORMS
    assert gluon.MISSING is None


def test_the_kernels_are_chosen_on_hopper_alone() -> None:
    """The kernels compile there. Every operation that they use is tried."""
    assert choices()[0] == "[90] []"


def test_a_version_that_is_not_tested_is_not_used_and_says_so_once() -> None:
    chosen, _, warned = choices()[1].partition(" ")
    assert chosen == "[]"
    assert warned.count("Gluon of Triton 3.10.0 is not used: ") == 1
    assert "not among the versions tested" in warned
    assert "1.77 ms instead of 1.41" in warned
    assert "from 3.6 to 3.9" in warned


def test_a_refusal_is_a_warning_with_its_cause(on_hopper: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise TritonError("at 5:4") from AttributeError("no 'reinterpret'")

    on_hopper.setattr(gluon, "_trial_kernel", SimpleNamespace(warmup=refuse))
    with pytest.warns(UserWarning, match="refuses a kernel .*no 'reinterpret'"):
        assert not gluon.available()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not gluon.available()


def test_known_releases_try_no_kernel_but_with_another_assembler(
    on_hopper: pytest.MonkeyPatch,
) -> None:
    tried = list[int]()
    on_hopper.setattr(gluon, "_assembles_alone", lambda: True)
    on_hopper.setattr(
        gluon, "_trial_kernel", SimpleNamespace(warmup=lambda *_, **__: tried.append(1))
    )
    on_hopper.setattr(gluon, "RELEASES", (gluon.triton.__version__,))
    assert gluon.available()
    assert not tried
    gluon._usable.cache_clear()
    on_hopper.setattr(gluon, "_assembles_alone", lambda: False)
    assert gluon.available()
    assert tried


def test_an_assembler_or_options_of_the_users_are_not_tritons_own() -> None:
    own, elsewhere, options = run_compiler(ASSEMBLERS).split()
    assert (own, elsewhere, options) == ("True", "False", "False")
