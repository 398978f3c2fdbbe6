"""Messages between a process and its workers: bytes behind their length, over a pipe."""

from struct import Struct
from typing import IO, Final

_LENGTH: Final = Struct("<Q")


def send(stream: IO[bytes], message: bytes) -> None:
    """Write a message. Raises OSError where the reader is gone."""
    stream.write(_LENGTH.pack(len(message)))
    stream.write(message)
    stream.flush()


def receive(stream: IO[bytes]) -> bytes | None:
    """The next message; None where the writer is gone."""
    header = stream.read(_LENGTH.size)
    if len(header) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(header)
    message = stream.read(length)
    return message if len(message) == length else None
