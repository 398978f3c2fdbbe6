"""Signals deferred until a section of code that must not be interrupted has ended."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from typing import Final

NAMES: Final = ("SIGINT", "SIGTERM", "SIGALRM", "SIGHUP", "SIGUSR1", "SIGUSR2")
SIGNALS: Final = tuple(getattr(signal, name) for name in NAMES if hasattr(signal, name))


@contextmanager
def defer_signals() -> Iterator[None]:
    """Defer signals with Python handlers, such as Ctrl-C, to the end of the context.

    Python runs handlers in the main thread alone. In other threads the context does nothing.
    """
    if current_thread() is not main_thread():
        yield
        return
    raised: list[int] = []
    handlers = ((number, signal.getsignal(number)) for number in SIGNALS)
    before = {number: handler for number, handler in handlers if callable(handler)}
    try:
        for number in before:
            signal.signal(number, lambda caught, _: raised.append(caught))
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for again in raised:
            signal.raise_signal(again)
