"""An attempt whose failure is handed to another thread or process, not raised here."""

from types import TracebackType


class Attempt:
    """A with-block that keeps the exception raised in it as `error` and goes on behind it."""

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
