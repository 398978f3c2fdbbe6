"""Forms in which a forward returns its maps beside tuples and dicts: objects, and nested ones."""

from collections.abc import Iterator, Mapping
from typing import Any, Final
from zlib import crc32

from torch import Tensor

OBJECTS: Final[Mapping[str, str]] = {  # of the first output, the last one and all, joined
    "answer": "Answer({first}, [{joined}])",
    "answer of two": "Answer({first}, [{last}, None, 1.5], name='two')",
    "slotted": "Slotted({first}, {last})",
    "stated": "Stated({first})",
    "detected": "Detected({first}, 4)",
    "nested": '{{"all": [{joined}], "about": {{"first": {first}, "count": 3, "name": None}}}}',
    "outputs": "Outputs(first={first}, rest=({joined},))",
    "batch": "Batch([{joined}]).named('some')",
    "nameless batch": "Batch([{joined}])",
    "parts": "{first}.chunk(2, 1)",
    "part of parts": "({first}, {first}.chunk(2, 1))",
}
REFUSED_FORMS: Final[Mapping[str, str]] = {
    "unknown": "Unknown({first})",
    "unknown beside": "({first}, Unknown({last}))",
    "fixed": "Fixed({first})",
    "values": "Outputs(first={first}).values()",
}


def returned(form: str, outputs: tuple[str, ...]) -> str:
    """The expression that forward returns in a form of OBJECTS or REFUSED_FORMS."""
    text = (OBJECTS | REFUSED_FORMS)[form]
    return text.format(first=outputs[0], last=outputs[-1], joined=", ".join(outputs))


def maps_in(found: Any) -> tuple[dict[str, Tensor], float]:
    """The maps of what a network returned, by their paths in it, and a number for its form."""
    maps, form = dict[str, Tensor](), []
    for path, value in _values(found, ""):
        if isinstance(value, Tensor):
            maps[path or "out"] = value
        form.append(f"{path} {type(value).__name__} {_plain(value)}")
    return maps, float(crc32("\n".join(form).encode()))


def _values(found: Any, path: str) -> Iterator[tuple[str, Any]]:
    """An object and all objects inside it, with their paths."""
    yield path, found
    if isinstance(found, Tensor):
        return
    if isinstance(found, Mapping):
        for name, value in found.items():
            yield from _values(value, f"{path}.{name}".strip("."))
    elif isinstance(found, (tuple, list)):
        for number, value in enumerate(found):
            yield from _values(value, f"{path}.{number}".strip("."))
    if not isinstance(found, type):
        names = getattr(found, "__slots__", ()) if not isinstance(found, tuple) else ()
        held = dict(getattr(found, "__dict__", {})) | {name: getattr(found, name) for name in names}
        for name, value in held.items():
            yield from _values(value, f"{path}:{name}")


def _plain(value: Any) -> str:
    return repr(value) if isinstance(value, (int, float, str, type(None), type)) else ""
