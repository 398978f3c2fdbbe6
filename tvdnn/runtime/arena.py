"""The arena: the device memory of a network's schedules, grown between steps."""

import torch

from ..errors import DeviceError
from ..planner.ir.page_map import PageMap
from ..units import format_bytes
from .cpu_executor import POISON
from .pages import Mapping, Pages, make_pages


class Arena:
    """Bytes on `device`: one allocation, or pages once a schedule needs these.

    `generation` counts moves. After a move, CUDA graphs must be captured again. A caller drops its
    views and mappings before the arena grows. Otherwise the old bytes stay allocated beside the new
    ones.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.generation = 0
        self.bytes = torch.empty(0, dtype=torch.uint8, device=device)
        self._pages: Pages | None = None
        self._all: Mapping | None = None  # all pages in their order

    def holds(self, nbytes: int, pages: PageMap | None) -> bool:
        """Whether the arena has so many bytes, in pages of that size where there is a page map."""
        paged = pages is None or (self._pages and self._pages.page_nbytes == pages.page_nbytes)
        return nbytes <= self.nbytes and bool(paged)

    def reserve(self, nbytes: int, pages: PageMap | None = None) -> None:
        """Grow to at least `nbytes` bytes. The old bytes are freed first.

        Raises DeviceError where the device has fewer bytes free.
        """
        if self.holds(nbytes, pages):
            return
        page_nbytes = pages.page_nbytes if pages else self._pages and self._pages.page_nbytes
        nbytes = max(nbytes, self.nbytes)
        self.close()
        if page_nbytes:
            self._pages = make_pages(-(-nbytes // page_nbytes), page_nbytes, self.device)
            self._all = Mapping(self._pages, range(self._pages.count))
            self.bytes = self._all.bytes
        else:
            self.bytes = self._allocated(nbytes)
        if self.device.type == "cpu":
            self.bytes.fill_(POISON)
        self.generation += 1

    def mapped(self, pages: PageMap) -> Mapping:
        """The addresses of a page map. The arena holds its pages."""
        assert self._pages is not None, "the arena has no pages"
        return Mapping(self._pages, pages.table)

    def _allocated(self, nbytes: int) -> torch.Tensor:
        try:
            return torch.empty(nbytes, dtype=torch.uint8, device=self.device)
        except torch.cuda.OutOfMemoryError as error:
            free, _ = torch.cuda.mem_get_info(self.device)
            raise DeviceError(
                f"the arena needs {format_bytes(nbytes)} and the device has {format_bytes(free)} "
                "free; pass a budget below that, or free device memory"
            ) from error

    @property
    def nbytes(self) -> int:
        return self.bytes.numel()

    @property
    def nbytes_outside_torch(self) -> int:
        """The bytes that torch's allocator does not count."""
        return self.nbytes if self._pages else 0

    def close(self) -> None:
        """Give the bytes back."""
        self.generation += 1
        self.bytes = torch.empty(0, dtype=torch.uint8, device=self.device)
        if self._pages is not None and self._all is not None:
            self._all.close()
            self._pages.close()
            self._pages = self._all = None
