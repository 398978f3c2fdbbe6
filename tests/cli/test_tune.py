"""`tvdnn tune`: its choices and tables, and the commands that use its choices."""

import json
from pathlib import Path

import pytest

from tests.support.commands import Captured, run
from tests.support.tuning import BUDGET, FASTER, SHARES, Clocked
from tvdnn.cli import tune
from tvdnn.experiment import processes
from tvdnn.ops.chunk_size import LEAST_CHUNK_SIZE
from tvdnn.units import KIB

SMALL = ("lenet5", "--batch", "16", "--dtype", "fp32", "--hardware", "H200")
TRIED = ("--chunk-sizes", "16KiB,32KiB", "--budget", str(BUDGET))
pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(autouse=True)
def _one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "PROCESSES", 1)


@pytest.mark.usefixtures("few_settings", "few_trials")
def test_tune_settles_and_the_other_commands_use_it(capsys: Captured, tmp_path: Path) -> None:
    plan = ("plan", *SMALL, "--budget", str(BUDGET), "--json", "-")
    before = json.loads(run(capsys, *plan)[1])["row"]
    assert (before["chunk_size"], before["tuned"]) == (LEAST_CHUNK_SIZE, False)
    path = tmp_path / "tuned.json"
    code, out, err = run(capsys, "tune", *SMALL, *TRIED, "--report", "--json", path)
    found = json.loads(path.read_text())
    assert code == 0
    assert "lenet5(16) 32x32 fp32, simulated on H200" in out
    assert "step over chunk size" in out
    assert "lenet5(16): simulating chunk sizes" in err.splitlines()
    assert found["simulated"]
    assert found["chunks"]["default"] in (16 * KIB, 32 * KIB)
    assert [stored["budget"] for stored in found["budgets"]] == [BUDGET]
    assert {point["chunk_size"] for point in found["curve"]} == {16 * KIB, 32 * KIB}
    after = json.loads(run(capsys, *plan)[1])["row"]
    assert (after["chunk_size"], after["tuned"]) == (found["chunks"]["default"], True)
    assert after["predicted_s"] == pytest.approx(found["budgets"][0]["simulated_s"])
    own = json.loads(run(capsys, *plan, "--chunk-size", "8KiB")[1])["row"]
    assert (own["chunk_size"], own["tuned"]) == (8 * KIB, False)
    _, _, err = run(capsys, "tune", *SMALL, *TRIED)
    assert "simulating" not in err


@pytest.mark.usefixtures("guessed")
def test_an_interrupted_command_says_so_and_is_1(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tune, "machine_for", lambda *_: Clocked(stops_after=1))
    code, _, err = run(capsys, "tune", *SMALL, *TRIED)
    assert code == 1
    assert "interrupted: what was tried and settled is kept" in err
    monkeypatch.setattr(tune, "machine_for", lambda *_: Clocked(shares=SHARES))
    code, out, _ = run(capsys, "tune", *SMALL, *TRIED)
    assert code == 0
    assert "Launches with configurations of their own: 2." in out
    found = json.loads(run(capsys, "tune", *SMALL, *TRIED, "--json", "-")[1])
    assert found["configurations"] == FASTER
    assert "measured on H200" in out
    assert "simulating" not in run(capsys, "tune", *SMALL, *TRIED)[2]
    assert "simulating" in run(capsys, "tune", *SMALL, *TRIED, "--again")[2]


@pytest.mark.usefixtures("guessed")
def test_the_curve_is_drawn(capsys: Captured, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "curve.svg"
    assert run(capsys, "tune", *SMALL, *TRIED, "-o", path)[0] == 0
    assert "chunk size, MiB" in path.read_text()


@pytest.mark.parametrize("sizes", ["4KiB,none", "few"])
def test_sizes_that_are_none_are_refused(capsys: Captured, sizes: str) -> None:
    assert run(capsys, "tune", *SMALL, "--chunk-sizes", sizes)[0] == 2
