"""The section file: bytes come back as they were written, or the first failure is told."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.support.faulty_file import (
    BROKEN,
    FULL,
    FaultyFile,
    moves_nothing,
    reads_another_byte,
    writes_a_page,
)
from tvdnn.errors import FileError, HostMemoryError
from tvdnn.runtime.host_slab import Slab
from tvdnn.runtime.section_file import PAGE, SectionFile

SIZES = (1, 511, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE + 17)


def check_that_it_comes_back(file: SectionFile, section: torch.Tensor) -> None:
    """Write a section at the file's start and read it again."""
    want = section.clone()
    file.write(section, 0, "a [0, 1)")
    section.zero_()
    file.read(section, 0, "a [0, 1)")
    assert torch.equal(section, want)
    assert file.take_fault() is None


@pytest.fixture
def memory(generator: torch.Generator) -> torch.Tensor:
    """Bytes of a slab, whose pages begin at multiples of a page."""
    slab = Slab(pinned=False)
    slab.reserve(16 * PAGE)
    slab.bytes.copy_(torch.randint(0, 256, (16 * PAGE,), generator=generator, dtype=torch.uint8))
    return slab.bytes


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("nbytes", SIZES)
def test_a_section_comes_back(
    tmp_path: Path, memory: torch.Tensor, nbytes: int, direct: bool
) -> None:
    file = SectionFile(tmp_path)
    if not direct:
        file.go_through_the_page_cache()
    file.reserve(8 * PAGE)
    given, other = memory[:nbytes], memory[8 * PAGE : 8 * PAGE + 5]
    want = given.clone()
    file.write(given, PAGE, "a [0, 1)")
    file.write(other, 7 * PAGE, "b [0, 1)")
    memory[4 * PAGE : 8 * PAGE].fill_(7)
    file.read(memory[4 * PAGE : 4 * PAGE + nbytes], PAGE, "a [0, 1)")
    assert torch.equal(memory[4 * PAGE : 4 * PAGE + nbytes], want)
    assert (memory[4 * PAGE + nbytes : 8 * PAGE] == 7).all()
    assert file.take_fault() is None
    file.close()


def test_the_file_has_no_name(tmp_path: Path, memory: torch.Tensor) -> None:
    file = SectionFile(tmp_path)
    file.reserve(PAGE)
    file.write(memory[:PAGE], 0, "a [0, 1)")
    assert not list(tmp_path.iterdir())
    file.close()


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"no file can be made in .*/none .*name a folder"):
        SectionFile(tmp_path / "none")


def test_a_disk_that_is_too_small_is_named(tmp_path: Path) -> None:
    file = SectionFile(tmp_path)
    with pytest.raises(HostMemoryError, match=r"1024.00 GiB|lower file_budget"):
        file.reserve(1 << 60)
    file.close()


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ({"write": FULL}, r"writing a \[0, 1\) \(8.01 KiB\) failed .*No space left on device"),
        ({"write": moves_nothing}, r"writing a .*the write of 8192 bytes ended at 0"),
        ({"read": BROKEN}, r"reading a \[0, 1\) \(8.01 KiB\) failed .*Input/output error"),
        ({"read": moves_nothing}, r"reading a .*the read of 8192 bytes ended at 0"),
        ({"read": reads_another_byte}, r"reading a .*its checksum is not that of the bytes"),
    ],
)
def test_a_failure_gives_zeros_and_is_told_once(
    tmp_path: Path, memory: torch.Tensor, how: dict[str, Callable[..., int]], told: str
) -> None:
    file = FaultyFile(tmp_path, at=0, **how)
    nbytes = 2 * PAGE + 10
    file.reserve(8 * PAGE)
    section = memory[:nbytes]
    want = section.clone()
    file.write(section, 0, "a [0, 1)")
    file.read(section, 0, "a [0, 1)")
    assert file.error_word.item() == 1
    assert not section.any()
    section.copy_(want)
    file.write(section, 4 * PAGE, "b [0, 1)")  # does nothing
    file.read(section, 4 * PAGE, "b [0, 1)")
    assert not section.any()
    found = file.take_fault() or ""
    assert re.search(told, found)
    assert str(tmp_path) in found
    assert "raise host_budget" in found
    assert file.error_word.item() == 0
    section.copy_(want)
    check_that_it_comes_back(file, section)
    file.close()


def test_a_short_write_goes_on(tmp_path: Path, memory: torch.Tensor) -> None:
    file = FaultyFile(tmp_path, at=0, write=writes_a_page)
    file.reserve(8 * PAGE)
    check_that_it_comes_back(file, memory[: 3 * PAGE + 1])
    file.close()


def test_bytes_of_another_section_are_no_answer(tmp_path: Path, memory: torch.Tensor) -> None:
    """A read of a place that was written in another size, or not at all, fails."""
    file = SectionFile(tmp_path)
    file.reserve(8 * PAGE)
    file.write(memory[:PAGE], 0, "a [0, 1)")
    for nbytes, offset in ((PAGE - 1, 0), (PAGE, PAGE)):
        file.read(memory[:nbytes], offset, "b [0, 1)")
        assert "reading b" in (file.take_fault() or "")
    file.close()
