"""Streams that others are forked from, and joined with whatever happens."""

from typing import cast

import pytest
import torch

from tvdnn.runtime.streams import fork_join


class Stream:
    """Records the events that it waits for."""

    def __init__(self, name: str, told: list[tuple[str, str]]) -> None:
        self.name, self.told = name, told

    def wait_stream(self, other: "Stream") -> None:
        self.told.append((self.name, other.name))


def test_streams_are_joined_behind_an_error() -> None:
    told: list[tuple[str, str]] = []
    main, first, second = (
        cast(torch.cuda.Stream, Stream(name, told)) for name in ("main", "first", "second")
    )

    def fail() -> None:
        with fork_join(main, [first, second]):
            assert told == [("first", "main"), ("second", "main")]
            raise ValueError("own")

    with pytest.raises(ValueError, match="own"):
        fail()
    assert told[2:] == [("main", "first"), ("main", "second")]
