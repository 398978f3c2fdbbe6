"""Names that tests patch exist, also in tests that only a GPU runs."""

import ast
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parent


def imported(tree: ast.Module) -> dict[str, tuple[str, str]]:
    """By name in a file, what it imports: a module, and a name of it or none."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {each.asname or each.name: (node.module, each.name) for each in node.names}
        elif isinstance(node, ast.Import):
            found |= {each.asname: (each.name, "") for each in node.names if each.asname}
    return found


def resolved(module: str, name: str) -> Any:
    owner = import_module(module)
    if not name:
        return owner
    return getattr(owner, name) if hasattr(owner, name) else import_module(f"{module}.{name}")


def patched(source: Path) -> Iterator[tuple[str, str, str]]:
    """Of each `setattr(NAME, "attribute", ...)` of something imported: its origin and attribute."""
    tree = ast.parse(source.read_text())
    known = imported(tree)
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        if node.func.attr != "setattr" or len(node.args) < 3:
            continue
        owner, attribute = node.args[:2]
        is_known = isinstance(owner, ast.Name) and owner.id in known
        if is_known and isinstance(attribute, ast.Constant):
            yield (*known[owner.id], str(attribute.value))


def test_patched_names_exist() -> None:
    calls = {each for source in TESTS.rglob("test_*.py") for each in patched(source)}
    assert len(calls) > 50
    missing = [
        f"{module}.{name}: {attribute}"
        for module, name, attribute in sorted(calls)
        if not hasattr(resolved(module, name), attribute)
    ]
    assert not missing, missing
