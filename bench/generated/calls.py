"""CallMode: a region in which calls of torch's functions go another way."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch.overrides import TorchFunctionMode


class CallMode(TorchFunctionMode):
    """Hands each call of a function of torch's to `called`."""

    def called(
        self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        raise NotImplementedError

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        return self.called(func, args, kwargs or {})
