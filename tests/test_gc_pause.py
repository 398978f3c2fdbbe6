"""The search for cycles stands still for all that ask for it, captures among them."""

import gc
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any, cast

import torch

from tvdnn.gc_pause import without_collection
from tvdnn.runtime.streams import capture


def test_it_goes_on_when_the_last_is_done() -> None:
    assert gc.isenabled()
    with ExitStack() as first, ExitStack() as second:
        first.enter_context(without_collection())
        second.enter_context(without_collection())
        assert not gc.isenabled()
        first.close()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_where_it_is_off_it_stays_off() -> None:
    gc.disable()
    try:
        with without_collection():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_nothing_is_freed_within_a_capture() -> None:
    told: list[str] = []
    graph = SimpleNamespace(
        capture_begin=lambda **_: told.append("begin"), capture_end=lambda: told.append("end")
    )
    no_stream = cast("torch.cuda.Stream", None)
    with capture(cast("Any", graph), no_stream, None):
        assert not gc.isenabled()
        assert told == ["begin"]
    assert gc.isenabled()
    assert told == ["begin", "end"]
