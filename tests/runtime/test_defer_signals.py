"""Interrupts wait for the end of work that must not be cut in two."""

import signal
from threading import Thread

import pytest

from tvdnn.runtime.defer_signals import defer_signals


def test_an_interrupt_waits_for_the_end() -> None:
    done = []

    def interrupted() -> None:
        with defer_signals():
            signal.raise_signal(signal.SIGINT)
            done.append("issued")
        done.append("after")

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            interrupted()
        assert done == ["issued"]
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_so_does_any_signal_that_python_code_handles() -> None:
    seen = []
    before = signal.signal(signal.SIGUSR1, lambda *_: seen.append("handled"))
    try:
        with defer_signals():
            signal.raise_signal(signal.SIGUSR1)
            seen.append("issued")
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert seen == ["issued", "handled"]


def test_an_error_passes() -> None:
    with pytest.raises(ValueError, match="own"), defer_signals():
        raise ValueError("own")


def test_in_another_thread_it_does_nothing() -> None:
    done = []

    def run() -> None:
        with defer_signals():
            done.append(signal.getsignal(signal.SIGINT))

    thread = Thread(target=run)
    thread.start()
    thread.join()
    assert done == [signal.getsignal(signal.SIGINT)]
