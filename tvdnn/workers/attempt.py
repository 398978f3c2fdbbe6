"""A with-block whose failure is for another thread or process."""

from types import TracebackType


class Attempt:
    """A with-block that keeps its exception as `error` and does not raise it."""

    def __init__(self) -> None:
        self.error: BaseException | None = None

    def __enter__(self) -> "Attempt":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        self.error = error
        return True
