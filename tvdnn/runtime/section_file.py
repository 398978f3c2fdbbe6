"""The section file: sections at rest on a local disk, with a checksum of each in memory."""

import errno
import fcntl
import mmap
import os
import zlib
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Final

import torch

from ..errors import FileError, HostMemoryError
from ..planner.ir.schedule import FILE_ALIGNMENT
from ..units import MIB, format_bytes

PAGE: Final = FILE_ALIGNMENT  # bytes of the unit of reads and writes past the page cache
# Bytes whose checksum is taken while they are in the processor's cache. There it takes 0.5 s a GB,
# of 16 MiB in memory 1.1 s. By pieces of 1 MiB the disk writes 0.86 GB/s, by these 1.17 (H100 in a
# virtual machine, 2026-11-26).
PIECE_NBYTES: Final = 4 * MIB


class SectionFile:
    """An unnamed file in `folder`, a folder on a local disk. It is gone once it is closed.

    Reads and writes name their bytes by position and go past the page cache where the file system
    takes that. A section that is read must have the checksum with which it was written.

    The first failure is kept, in words, as `fault`, and the int32 `error_word` becomes 1. The step
    goes on: later writes do nothing, and reads give zeros. Passes that would change parameters read
    the word before. A write and a read may run at one time.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.nbytes = 0
        self.fault: str | None = None
        self.error_word = torch.zeros(1, dtype=torch.int32, pin_memory=torch.cuda.is_available())
        try:
            self._file = TemporaryFile(dir=self.folder, buffering=0)  # noqa: SIM115 (kept open)
        except OSError as error:
            raise FileError(
                f"no file can be made in {self.folder} ({error.strerror}); name a folder on a "
                "local disk that may be written"
            ) from error
        self._checksums: dict[int, tuple[int, int]] = {}  # by offset, bytes and their CRC-32
        # By whether it is written, a page for the end of a section, which fills none.
        self._ends = {writes: mmap.mmap(-1, PAGE) for writes in (True, False)}
        self.direct = False  # whether reads and writes go past the page cache
        self._go_past_the_page_cache()

    @property
    def place(self) -> str:
        """Where copies go: the folder, and whether past the page cache. Measured rates go by it."""
        return f"{'direct ' if self.direct else ''}file in {self.folder.resolve()}"

    def reserve(self, nbytes: int) -> None:
        """Grow to at least `nbytes` bytes. Raises HostMemoryError where the disk has fewer."""
        if nbytes <= self.nbytes:
            return
        try:
            os.posix_fallocate(self._file.fileno(), 0, nbytes)
        except OSError as error:
            raise HostMemoryError(
                f"the plan keeps {format_bytes(nbytes)} in the file in {self.folder}, which cannot "
                f"grow so far ({error.strerror}); free space there, or lower file_budget"
            ) from error
        self.nbytes = nbytes

    def write(self, memory: torch.Tensor, offset: int, name: str) -> None:
        """Write a section, bytes uint8 [n], at `offset`, a multiple of 4096."""
        if self.fault is not None:
            return
        view = memory.numpy().data
        self._checksums.pop(offset, None)
        try:
            checksum = self._move(view, offset, writes=True)
        except OSError as error:
            self._fail(f"writing {name}", memory.numel(), error)
            return
        self._checksums[offset] = len(view), checksum

    def read(self, memory: torch.Tensor, offset: int, name: str) -> None:
        """Read the section at `offset` into bytes uint8 [n]; zeros where that fails."""
        if self.fault is None:
            view = memory.numpy().data
            try:
                checksum = self._move(view, offset, writes=False)
                if self._checksums.get(offset) != (len(view), checksum):
                    raise OSError(errno.EBADMSG, "its checksum is not that of the bytes written")
            except OSError as error:
                self._fail(f"reading {name}", memory.numel(), error)
        if self.fault is not None:
            memory.zero_()

    def fail(self, doing: str, why: str) -> None:
        """Keep in words what failed, if it is the first failure, and set the error word."""
        if self.fault is None:
            self.fault = (
                f"{doing} failed in the file in {self.folder}: {why}. No parameter and no "
                "optimizer state has changed in this step: free space on the disk or name another "
                "folder, or raise host_budget so that less goes there, and take the step again"
            )
            self.error_word.fill_(1)

    def take_fault(self) -> str | None:
        """The first failure in words. It is forgotten: later steps may use the file again."""
        fault, self.fault = self.fault, None
        self.error_word.zero_()
        return fault

    def close(self) -> None:
        """Give the bytes on the disk back."""
        self._file.close()
        for page in self._ends.values():
            page.close()
        self._checksums.clear()
        self.nbytes = 0

    def pwrite(self, view: memoryview, offset: int) -> int:
        """Write bytes at a position; returns how many were written."""
        return os.pwrite(self._file.fileno(), view, offset)

    def pread(self, view: memoryview, offset: int) -> int:
        """Read bytes from a position; returns how many were read."""
        return os.preadv(self._file.fileno(), [view], offset)

    def go_through_the_page_cache(self) -> None:
        """Read and write by the operating system's page cache."""
        handle = self._file.fileno()
        fcntl.fcntl(handle, fcntl.F_SETFL, fcntl.fcntl(handle, fcntl.F_GETFL) & ~os.O_DIRECT)
        self.direct = False

    def _go_past_the_page_cache(self) -> None:
        """Read and write without copies in the page cache, where the file system takes that."""
        handle = self._file.fileno()
        with suppress(OSError):
            fcntl.fcntl(handle, fcntl.F_SETFL, fcntl.fcntl(handle, fcntl.F_GETFL) | os.O_DIRECT)
            self.direct = True
            try:
                os.pwrite(handle, self._ends[True], 0)
            except OSError:
                self.go_through_the_page_cache()

    def _move(self, view: memoryview, offset: int, *, writes: bool) -> int:
        """Write or read a section piece by piece; returns the CRC-32 of its bytes."""
        checksum = 0
        for start in range(0, len(view), PIECE_NBYTES):
            piece = view[start : start + PIECE_NBYTES]
            if writes:
                checksum = zlib.crc32(piece, checksum)
            self._move_piece(piece, offset + start, writes=writes)
            if not writes:
                checksum = zlib.crc32(piece, checksum)
        return checksum

    def _move_piece(self, view: memoryview, offset: int, *, writes: bool) -> None:
        """Write or read whole pages, and the bytes behind them through a page of their own."""
        whole = len(view) // PAGE * PAGE
        self._move_pages(view[:whole], offset, writes=writes)
        rest = len(view) - whole
        if rest:
            with memoryview(self._ends[writes]) as page:
                if writes:
                    page[:rest] = view[whole:]
                self._move_pages(page, offset + whole, writes=writes)
                if not writes:
                    view[whole:] = page[:rest]

    def _move_pages(self, view: memoryview, offset: int, *, writes: bool) -> None:
        done = 0
        while done < len(view):
            move = self.pwrite if writes else self.pread
            count = move(view[done:], offset + done)
            if count <= 0:
                where = f"{'write' if writes else 'read'} of {len(view)} bytes ended at {done}"
                raise OSError(errno.EIO, f"the {where}")
            done += count

    def _fail(self, doing: str, nbytes: int, error: OSError) -> None:
        self.fail(f"{doing} ({format_bytes(nbytes)})", f"{error.strerror}")
