"""Imports go down only: no module knows of a level above its own, and planning knows no torch."""

import ast
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parent.parent
LEVELS = {
    "tvdnn.collection": 0,
    "tvdnn.errors": 0,
    "tvdnn.units": 0,
    "tvdnn.kernels": 1,
    "tvdnn.workers": 1,
    "tvdnn.graph": 2,
    "tvdnn.memory": 2,
    "tvdnn.planner": 3,
    "tvdnn.aliases": 4,
    "tvdnn.asked": 4,
    "tvdnn.casts": 4,
    "tvdnn.draws": 4,
    "tvdnn.exchanged": 4,
    "tvdnn.exchanged_builtins": 4,
    "tvdnn.formulas": 4,
    "tvdnn.layouts": 4,
    "tvdnn.links": 4,
    "tvdnn.outside": 4,
    "tvdnn.outside_changes": 4,
    "tvdnn.reached": 4,
    "tvdnn.returned": 4,
    "tvdnn.twin_answers": 4,
    "tvdnn.calls": 4,
    "tvdnn.meta_tracer": 4,
    "tvdnn.refusals": 1,
    "tvdnn.nn": 4,
    "tvdnn.opaque_calls": 4,
    "tvdnn.ops": 4,
    "tvdnn.optim": 4,
    "tvdnn.trace": 4,
    "tvdnn.trace_state": 4,
    "tvdnn.traced_modules": 4,
    "tvdnn.proxy_attributes": 4,
    "tvdnn.recorded_calls": 4,
    "tvdnn.side_effects": 4,
    "tvdnn.stand_ins": 4,
    "tvdnn.state_changes": 4,
    "tvdnn.state_tape": 4,
    "tvdnn.runtime": 5,
    "tvdnn.data": 6,
    "tvdnn.engine": 6,
    "tvdnn.models": 6,
    "tvdnn.cli": 7,
    "tvdnn.report": 7,
    "tvdnn.__main__": 7,
    "tvdnn": 7,
}
PURE = (
    "tvdnn.collection",
    "tvdnn.errors",
    "tvdnn.units",
    "tvdnn.graph",
    "tvdnn.memory",
    "tvdnn.planner",
)
IMPURE = {"rich", "torch", "triton", "typer"}
SOURCES = sorted([*ROOT.glob("tvdnn/**/*.py"), *ROOT.glob("kernels/**/*.py")])
SCRIPTS = sorted([*ROOT.glob("bench/**/*.py"), *ROOT.glob("tests/**/*.py")])


def name_of(source: Path) -> str:
    """The module that a file of the checkout is imported as."""
    parts = source.relative_to(ROOT).with_suffix("").parts
    parts = ("tvdnn", *parts) if parts[0] == "kernels" else parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def imported(source: Path) -> list[str]:
    """Full names of what a file imports; of `from a import b` both a and a.b: b may be either."""
    names: list[str] = []
    package = name_of(source).split(".")
    if source.name != "__init__.py":
        package = package[:-1]
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, node.module] if node.module else above)
            if base != "tvdnn":
                names.append(base)
            names += [f"{base}.{alias.name}" for alias in node.names]
    return names


def part_of(name: str) -> str | None:
    """The longest entry of LEVELS that holds the module or attribute `name`; None outside tvdnn."""
    pieces = name.split(".")
    heads = (".".join(pieces[:length]) for length in range(len(pieces), 0, -1))
    return next((head for head in heads if head in LEVELS), None)


def own_part(source: Path) -> str:
    """The entry of LEVELS that a file belongs to."""
    part = part_of(name_of(source))
    assert part is not None
    return part


def parts_imported(source: Path) -> set[str]:
    """The parts of tvdnn that a file imports, other than its own."""
    parts = {part for name in imported(source) if (part := part_of(name)) is not None}
    return parts - {own_part(source)}


def test_every_module_has_a_level() -> None:
    strays = [path for path in SOURCES if own_part(path) == "tvdnn"]
    assert strays == [ROOT / "tvdnn" / "__init__.py"]


def test_imports_go_down() -> None:
    rises = [
        f"{name_of(source)} imports {part}"
        for source in SOURCES
        for part in parts_imported(source)
        if LEVELS[part] > LEVELS[own_part(source)]
    ]
    assert not rises


def test_parts_do_not_import_each_other_in_a_circle() -> None:
    graph: dict[str, set[str]] = {part: set() for part in LEVELS}
    for source in SOURCES:
        graph[own_part(source)] |= parts_imported(source) - {"tvdnn"}
    TopologicalSorter(graph).prepare()  # raises CycleError, naming the circle


def test_planning_knows_no_torch() -> None:
    impure = [
        f"{name_of(source)} imports {name}"
        for source in SOURCES
        if own_part(source) in PURE
        for name in imported(source)
        if name.split(".")[0] in IMPURE
    ]
    assert not impure


def test_kernels_know_nothing_of_tvdnn() -> None:
    kernels = [path for path in SOURCES if own_part(path) == "tvdnn.kernels"]
    assert kernels
    assert {part for source in kernels for part in parts_imported(source)} == set()


def test_no_import_hides_in_a_function() -> None:
    hidden = [
        f"{source.relative_to(ROOT)}:{inner.lineno}"
        for source in [*SOURCES, *SCRIPTS]
        for function in ast.walk(ast.parse(source.read_text()))
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
        for inner in ast.walk(function)
        if isinstance(inner, (ast.Import, ast.ImportFrom))
    ]
    assert not hidden
