"""A section file whose disk fails: at a given read or write, as disks do."""

import errno
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from tvdnn.errors import FileError
from tvdnn.runtime.section_file import PAGE, SectionFile


class FaultyFile(SectionFile):
    """A file of which read or write number `at`, counted from 0, does something else once."""

    def __init__(
        self,
        folder: Path,
        *,
        at: int | None = None,
        write: Callable[["FaultyFile", memoryview, int], int] | None = None,
        read: Callable[["FaultyFile", memoryview, int], int] | None = None,
    ) -> None:
        super().__init__(folder)
        self._at, self._failing = at, {"write": write, "read": read}
        self.counts = {"write": 0, "read": 0}

    def fail_at(self, number: int) -> None:
        """Have a read or write fail, counted from now on."""
        self._at, self.counts = number, {"write": 0, "read": 0}

    def pwrite(self, view: memoryview, offset: int) -> int:
        fails = self._next("write")
        return fails(self, view, offset) if fails else super().pwrite(view, offset)

    def pread(self, view: memoryview, offset: int) -> int:
        fails = self._next("read")
        return fails(self, view, offset) if fails else super().pread(view, offset)

    def really_write(self, view: memoryview, offset: int) -> int:
        return super().pwrite(view, offset)

    def really_read(self, view: memoryview, offset: int) -> int:
        return super().pread(view, offset)

    def _next(self, doing: str) -> Callable[["FaultyFile", memoryview, int], int] | None:
        number = self.counts[doing]
        self.counts[doing] += 1
        return self._failing[doing] if number == self._at else None


def fails_with(number: int) -> Callable[[FaultyFile, memoryview, int], int]:
    """A read or write that raises the OSError of this number."""

    def fail(file: FaultyFile, view: memoryview, offset: int) -> int:
        raise OSError(number, os.strerror(number))

    return fail


def moves_nothing(file: FaultyFile, view: memoryview, offset: int) -> int:
    return 0


def writes_a_page(file: FaultyFile, view: memoryview, offset: int) -> int:
    """A short write, which is no failure: the rest is written after it."""
    return file.really_write(view[:PAGE], offset)


def reads_another_byte(file: FaultyFile, view: memoryview, offset: int) -> int:
    """A read whose first byte changes on its way, unseen."""
    count = file.really_read(view, offset)
    view[0] ^= 1
    return count


FULL = fails_with(errno.ENOSPC)
BROKEN = fails_with(errno.EIO)
# By name, what a read or a write does instead, each of which ends a step without updates.
FAILURES: Final[Mapping[str, Mapping[str, Callable[[FaultyFile, memoryview, int], int]]]] = {
    "full": {"write": FULL},
    "broken write": {"write": BROKEN},
    "short write": {"write": moves_nothing},
    "broken read": {"read": BROKEN},
    "short read": {"read": moves_nothing},
    "corrupted byte": {"read": reads_another_byte},
}


@contextmanager
def step_refused(folder: Path) -> Iterator[None]:
    """The step within fails. Its error names the folder, what has not changed, and the cure."""
    with pytest.raises(FileError) as found:
        yield
    told = str(found.value)
    assert str(folder) in told
    assert "No parameter and no optimizer state has changed" in told
    assert "free space on the disk" in told
