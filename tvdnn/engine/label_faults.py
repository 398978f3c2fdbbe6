"""Label faults: a step on a label that is no class changes nothing, and an error follows later.

The device records the label and the step. The host does not wait: after every step the record is
copied into pinned memory. Until the host has raised the error, later steps change nothing either.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias
from weakref import WeakMethod

import torch
from torch import Tensor

from ..kernels.copy.labels import fault_of
from ..ops.operator import Control

Fault: TypeAlias = tuple[int, int, int]  # the number of the step, the sample, the label


class LabelFaults:
    """The device's record of a label fault, and the host's copy of it."""

    def __init__(self, control: Control) -> None:
        assert control.faults is not None
        self._flag, self._record = control.flag, control.faults.record
        self._known = torch.zeros(2, dtype=torch.int64, pin_memory=self._record.is_cuda)
        self._followed: deque[torch.cuda.Event] = deque(maxlen=2)  # behind the last steps

    def follow(self) -> None:
        """Copy the record to the host, after the work issued so far; call after each step."""
        self._known.copy_(self._record, non_blocking=True)
        if self._record.is_cuda:
            self._followed.append(torch.cuda.current_stream(self._record.device).record_event())

    def found_before(self, last: int) -> Fault | None:
        """The fault of a step up to `last`, the last but one that was issued; it is waited for."""
        if len(self._followed) == self._followed.maxlen:
            self._followed[0].synchronize()
        fault: Fault | None = fault_of(self._known)  # whose step may still be on its way
        return fault if fault is not None and 0 < fault[0] <= last else None

    def found(self, *, wait: bool = False) -> Fault | None:
        """The fault that is known, if any; with `wait` that of all steps issued."""
        if not wait and not self._known[0].item():
            return None
        fault: Fault | None = fault_of(self._record.cpu())
        return fault

    def clear(self) -> None:
        """Forget the fault: later steps train again."""
        if self._record.is_cuda:  # copies into pinned memory may be on their way
            torch.cuda.synchronize(self._record.device)
        for tensor in (self._flag, self._record, self._known):
            tensor.zero_()


class CheckedLoss(Tensor):
    """The loss of a step, a float32 tensor.

    Reading its value raises InputError where the step had labels that are no classes. Operations on
    it give plain tensors.
    """

    __torch_function__: Any = torch._C._disabled_torch_function_impl
    _check: Callable[[], None]

    def _checked_value(self) -> Tensor:
        value = self.as_subclass(Tensor).detach().cpu()
        self._check()
        return value

    def item(self) -> float:
        return float(self._checked_value().item())

    def tolist(self) -> Any:
        return self.item()

    def cpu(self, memory_format: torch.memory_format = torch.preserve_format) -> Tensor:
        return self._checked_value()

    def numpy(self, *, force: bool = False) -> Any:
        return self._checked_value().numpy()

    def __array__(self, *arguments: Any, **options: Any) -> Any:
        return self._checked_value().__array__(*arguments, **options)

    def __float__(self) -> float:
        return self.item()

    def __int__(self) -> int:
        return int(self.item())

    def __bool__(self) -> bool:
        return bool(self.item())

    def __repr__(self, **options: Any) -> str:  # type: ignore[override]
        self._checked_value()
        return repr(self.as_subclass(Tensor))

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        return self.as_subclass(Tensor).clone()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.as_subclass(Tensor).__reduce_ex__(protocol)


def loss_of(value: Tensor, check: Callable[[], None]) -> CheckedLoss:
    """The loss whose reading calls the method `check` of an object, while the object lives."""
    loss = value.as_subclass(CheckedLoss)
    method = WeakMethod(check)

    def checked() -> None:
        call = method()
        if call is not None:
            call()

    loss._check = checked
    return loss
