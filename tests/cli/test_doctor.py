"""`tvdnn doctor`: its findings on a machine."""

import json
import re
from pathlib import Path

import pytest
import torch

from tests.support.commands import Captured, run, table
from tvdnn.cli import doctor


def test_doctor_names_what_it_finds(capsys: Captured, tmp_path: Path) -> None:
    path = tmp_path / "doctor.json"
    code, out, _ = run(capsys, "doctor", "--json", path)
    found = {finding["name"]: finding for finding in json.loads(path.read_text())}
    assert code == int(any(finding["fatal"] for finding in found.values()))
    assert found["torch"]["value"] == torch.__version__
    names = ("GPU", "triton", "host memory free", "lockable memory (ulimit -l)", "C compiler")
    assert all(name in found and name in out for name in names)
    first = found["first step of lenet5(64)"]["value"]
    assert re.match(r"\d+\.\d s: other \d+\.\d, tracing ", first)
    assert "planning" in first
    assert "running" in first
    assert (found["GPU"]["value"] == "none") is not torch.cuda.is_available()


def test_doctor_fails_where_torch_is_too_old(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "software", lambda: {"torch": "2.4.1+cpu", "triton": "3.10.0"})
    code, out, _ = run(capsys, "doctor")
    assert code == 1
    assert any("install torch>=2.11" in line for line in table(out))
    assert "install triton" not in out
    assert "first step" not in out
