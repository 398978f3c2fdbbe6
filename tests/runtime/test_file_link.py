"""The rates of a file: as its copies take, and none of a disk that fails."""

from pathlib import Path

import pytest

from tests.support.faulty_file import BROKEN, FULL, FaultyFile
from tvdnn.errors import FileError
from tvdnn.runtime import file_link
from tvdnn.runtime.file_lanes import NAP_S
from tvdnn.runtime.file_link import measure_file_link
from tvdnn.runtime.section_file import PAGE, SectionFile
from tvdnn.units import MIB


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_link, "LONG_NBYTES", MIB)
    monkeypatch.setattr(file_link, "COPIES", 3)


def test_all_rates_are_measured_on_few_bytes(tmp_path: Path) -> None:
    file = SectionFile(tmp_path)
    link = measure_file_link(file)
    assert file.nbytes == 8 * MIB
    assert 0 < link.out_duplex <= link.out
    assert 0 < link.back_duplex <= link.back
    assert link.latency_s >= NAP_S / 2
    assert file.take_fault() is None
    file.close()


@pytest.mark.parametrize("limit", [1, 9 * PAGE, 17 * PAGE])
def test_a_small_file_stays_small(tmp_path: Path, limit: int) -> None:
    file = SectionFile(tmp_path)
    assert measure_file_link(file, limit).out > 0
    assert file.nbytes <= max(limit, 8 * PAGE)
    file.close()


@pytest.mark.parametrize("failure", [{"write": FULL}, {"read": BROKEN}], ids=["write", "read"])
def test_a_disk_that_fails_has_no_rates(tmp_path: Path, failure: dict) -> None:
    file = FaultyFile(tmp_path, at=9 if "write" in failure else 2, **failure)
    with pytest.raises(FileError, match="failed in the file in"):
        measure_file_link(file)
    assert measure_file_link(file).out > 0
    file.close()


def test_rates_go_by_folder_and_by_way(tmp_path: Path) -> None:
    first, second = SectionFile(tmp_path), SectionFile(tmp_path)
    assert first.place == second.place
    second.go_through_the_page_cache()
    (tmp_path / "other").mkdir()
    other = SectionFile(tmp_path / "other")
    assert len({first.place, second.place, other.place}) == 2 + first.direct
    for file in (first, second, other):
        file.close()
