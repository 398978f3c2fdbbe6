"""The most bytes that torch allocates at once while a function runs."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def peak_nbytes(run: Callable[[], object], device: torch.device) -> int:
    """The most bytes allocated at once while `run` runs, above those before.

    On a GPU its allocator counts them. Elsewhere the tensors that operations make are counted.
    """
    if device.type != "cuda":
        living = _Living()
        with living:
            run()
        return living.peak_nbytes
    torch.cuda.synchronize(device)
    before: int = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    run()
    return int(torch.cuda.max_memory_allocated(device)) - before


class _Living(TorchDispatchMode):
    """Counts the bytes of all tensors that operations have made and that are still there."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak_nbytes = 0
        self._made: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        given = {each.untyped_storage()._cdata for each in _tensors((args, kwargs))}
        result = func(*args, **(kwargs or {}))
        for tensor in _tensors(result):
            storage = tensor.untyped_storage()
            if storage._cdata not in given:  # as a view's is
                self._made[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        self._made = {key: made for key, made in self._made.items() if not made[0].expired()}
        self.peak_nbytes = max(self.peak_nbytes, sum(nbytes for _, nbytes in self._made.values()))
        return result


def _tensors(result: Any) -> Iterator[Tensor]:
    return (leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor))
