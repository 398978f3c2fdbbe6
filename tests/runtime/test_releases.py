"""Versions of torch and Triton: those tested together, and the message about others."""

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import tvdnn
from tvdnn.cli.doctor import findings_of_versions
from tvdnn.kernels.language import gluon
from tvdnn.runtime import releases

PYPROJECT = (Path(__file__).parents[2] / "pyproject.toml").read_text()


@pytest.fixture
def untested_torch(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Torch 3.1 and Triton 4.2 are installed."""
    versions = {"torch": "3.1.0+cu140", "triton": "4.2.0"}
    monkeypatch.setattr(releases, "version", versions.__getitem__)
    releases.warn_of_untested.cache_clear()
    yield
    releases.warn_of_untested.cache_clear()


def make_engine() -> None:
    net, x = tvdnn.nn.Sequential(tvdnn.nn.Flatten(), tvdnn.nn.Linear(4, 2)), torch.randn(2, 4)
    tvdnn.Trainer(net, x, optimizer=tvdnn.optim.SGD(lr=0.1), kernels="torch")


@pytest.mark.parametrize(
    ("torch_version", "triton_version", "says"),
    [
        ("2.11.0+cu130", "3.6.0", None),
        ("2.15.1", "3.9.2", None),
        ("2.14.0", None, None),
        ("2.16.0", "3.10.0", "torch 2.16.0 with Triton 3.10.0"),
        ("2.15.0", "3.6.0", "torch 2.15.0 with Triton 3.6.0"),
        ("2.16.0", None, "torch 2.16.0:"),
    ],
)
def test_a_pair_is_tested_or_named(
    torch_version: str, triton_version: str | None, says: str | None
) -> None:
    said = releases.untested(torch_version, triton_version)
    assert (said is None) == (says is None)
    assert says is None or (says in str(said) and "torch 2.11 to 2.15" in str(said))


def test_every_tested_triton_has_its_form_of_gluon() -> None:
    assert {triton for _, triton in releases.TESTED} == set(gluon.FORMS)


def test_the_oldest_tested_are_what_the_package_asks_for() -> None:
    (torch_major, torch_minor), (triton_major, triton_minor) = min(releases.TESTED)
    assert f'"torch>={torch_major}.{torch_minor}"' in PYPROJECT
    assert f'"triton>={triton_major}.{triton_minor}; ' in PYPROJECT


@pytest.mark.usefixtures("untested_torch")
def test_the_first_engine_warns_once() -> None:
    with pytest.warns(UserWarning, match="not tested with torch 3.1.0.* with Triton 4.2.0"):
        make_engine()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*not tested with")
        make_engine()


@pytest.mark.usefixtures("untested_torch")
def test_doctor_says_so() -> None:
    (finding,) = [each for each in findings_of_versions() if each.name == "tested together"]
    assert finding.value == "no"
    assert not finding.fatal
    assert "torch 3.1.0+cu140 with Triton 4.2.0" in str(finding.cure)
