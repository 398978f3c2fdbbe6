"""No file of more lines than one sitting takes, and no function that outgrows a screen."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("tvdnn", "kernels", "tests", "bench")
MOST_LINES_OF_A_FILE, MOST_LINES_OF_A_FUNCTION = 350, 60


def too_long(path: Path) -> Iterator[str]:
    """The file and its functions that have too many lines. Functions of kernels may be longer."""
    name, source = path.relative_to(ROOT).as_posix(), path.read_text()
    if len(source.splitlines()) > MOST_LINES_OF_A_FILE:
        yield name
    if name.startswith("kernels/"):
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            assert node.end_lineno is not None
            if node.end_lineno - node.lineno + 1 > MOST_LINES_OF_A_FUNCTION:
                yield f"{name}:{node.name}"


def test_files_and_functions_are_short() -> None:
    paths = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    assert [found for path in paths for found in too_long(path)] == []
