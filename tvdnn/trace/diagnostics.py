"""What a refusal says beside its reason: the line, and what could stand there instead."""

import sys
from collections.abc import Mapping
from pathlib import Path
from types import FrameType

from ..ops.registry import INSTEAD_OF

INNER = (
    *("torch.", "tvdnn.nn.", "tvdnn.ops.", "tvdnn.functional"),
    *("tvdnn.trace.tracer", "tvdnn.trace.diagnostics"),
    *(
        "tvdnn.trace.state.functionalize",
        "tvdnn.trace.guards.inputs",
        "tvdnn.trace.casts",
        "tvdnn.trace.python.patched_torch",
        "tvdnn.trace.python.patched_builtins",
        "tvdnn.trace.state.formulas",
        "tvdnn.trace.proxy_attributes",
        "tvdnn.trace.state.recorded_calls",
        "tvdnn.trace.python.outputs",
        "tvdnn.trace.python.side_effects",
        "tvdnn.trace.state.meta_copies",
        "tvdnn.trace.state.tape",
        "tvdnn.trace.state.meta_answers",
    ),
)
FOREIGN = (  # errors that a module's code may raise where a proxy is no tensor, or for its own sake
    *(ArithmeticError, AssertionError, AttributeError, LookupError, NameError),
    *(RuntimeError, TypeError, ValueError),
)
Line = tuple[str, int]
BY_VALUES = "the size of the result hangs on the values of maps"
INSTEAD: Mapping[str, str] = {
    "nonzero": BY_VALUES,
    "masked_select": BY_VALUES,
    "unique": BY_VALUES,
    "item": "no number of Python's is known before a step runs",
    "tolist": "no number of Python's is known before a step runs",
}


def instead(reason: str) -> str:
    """What to say of an alternative to the layer or function that the reason begins with."""
    hint = INSTEAD.get(reason) or INSTEAD_OF.get(reason)
    return f" ({hint})" if hint else ""


def place() -> str:
    """The line that runs outside torch's code and the layers', as " at file:line"; "" for none."""
    return shown(caller())


def caller() -> Line | None:
    """The file and number of the line that runs outside torch's code and the layers'.

    It is looked for up to the call of the traced module.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not _is_entry(frame):
        if not _is_inner(frame):
            return frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
    return None


def line_of(error: BaseException) -> Line | None:
    """The file and number of the innermost line outside torch's code that an error passed."""
    found, traceback = None, error.__traceback__
    while traceback is not None:
        if not _is_inner(traceback.tb_frame) and not _is_entry(traceback.tb_frame):
            found = traceback.tb_frame.f_code.co_filename, traceback.tb_lineno
        traceback = traceback.tb_next
    return found


def shown(line: Line | None) -> str:
    """A line as " at file:line"; "" for none."""
    return "" if line is None else f" at {_shown(line[0])}:{line[1]}"


def _is_inner(frame: FrameType) -> bool:
    name = str(frame.f_globals.get("__name__", ""))
    return name in ("torch", "copy") or name.startswith(INNER)


def _is_entry(frame: FrameType) -> bool:
    """Whether the frame is of the call by which tracing begins."""
    return bool(frame.f_globals.get("__name__") == "tvdnn.trace.trace")


def _shown(filename: str) -> str:
    """The file's path, from the present folder where it is below it."""
    path = Path(filename)
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
