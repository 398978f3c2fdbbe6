"""The line of the user's code that runs, for errors."""

import sys
from pathlib import Path
from types import FrameType

INNER = (
    *("torch.", "tvdnn.nn.", "tvdnn.ops.", "tvdnn.functional", "tvdnn.trace."),
    "tvdnn.experiment.",  # its modes of torch's, which see every call of the network
)
COMMANDS = "tvdnn.cli."
LIBRARIES = ("contextlib", "functools", "torch", "tvdnn")  # no code of a user
FOREIGN = (  # errors that a network's own code may raise
    *(ArithmeticError, AssertionError, AttributeError, LookupError, NameError),
    *(RuntimeError, TypeError, ValueError),
)
Line = tuple[str, int]


def source_location() -> str:
    """The line of the network's own code that runs, as " at file:line"; "" where there is none."""
    return location_text(source_line())


def user_location() -> str:
    """The line of the network's code that runs; where there is none, the line that called tvdnn.

    A network of layers alone, such as a Sequential, has no code of its own.
    """
    return source_location() or location_text(_line_outside())


def _line_outside() -> Line | None:
    """The line outside tvdnn and torch whose call has led here; None where a command has."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name.startswith(COMMANDS):
            return None
        if name.partition(".")[0] not in LIBRARIES:
            return frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
    return None


def source_line() -> Line | None:
    """The file and number of the line of the network's own code that runs; None for no line.

    Frames of torch, of layers and of the tracer are passed over. The search ends at `trace`.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not _is_call_of_trace(frame):
        if not _is_inner(frame):
            return frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
    return None


def line_of_error(error: BaseException) -> Line | None:
    """The file and number of the innermost line of a network's own code that an error passed."""
    found, traceback = None, error.__traceback__
    while traceback is not None:
        if not _is_inner(traceback.tb_frame) and not _is_call_of_trace(traceback.tb_frame):
            found = traceback.tb_frame.f_code.co_filename, traceback.tb_lineno
        traceback = traceback.tb_next
    return found


def location_text(line: Line | None) -> str:
    """A line as " at file:line"; "" for none."""
    return "" if line is None else f" at {_relative_path(line[0])}:{line[1]}"


def _is_inner(frame: FrameType) -> bool:
    name = str(frame.f_globals.get("__name__", ""))
    return name in ("torch", "copy") or name.startswith(INNER)


def _is_call_of_trace(frame: FrameType) -> bool:
    return bool(frame.f_globals.get("__name__") == "tvdnn.trace.trace")


def _relative_path(filename: str) -> str:
    path = Path(filename)
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
