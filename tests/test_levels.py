"""Imports go down only: no module knows of a level above its own, and planning knows no torch."""

import ast
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parent.parent
LEVELS = {
    "tvdnn.errors": 0,
    "tvdnn.gc_pause": 0,
    "tvdnn.units": 1,
    "tvdnn.kernels.language": 0,
    "tvdnn.kernels": 1,
    "tvdnn.workers": 1,
    "tvdnn.optim": 1,
    "tvdnn.functional": 1,
    "tvdnn.graph": 2,
    "tvdnn.placement": 2,
    "tvdnn.planner.ir": 3,
    "tvdnn.planner.verify": 4,
    "tvdnn.planner.lowering": 4,
    "tvdnn.planner.timing": 5,
    "tvdnn.planner.recompute": 5,
    "tvdnn.planner.problem": 5,
    "tvdnn.planner.offload": 6,
    "tvdnn.planner.joint": 7,
    "tvdnn.planner.policies": 8,
    "tvdnn.planner.make": 9,
    "tvdnn.planner.replan": 10,
    "tvdnn.planner": 10,
    "tvdnn.ops": 3,
    "tvdnn.nn": 4,
    "tvdnn.models": 5,
    "tvdnn.trace.source_lines": 4,
    "tvdnn.trace.refusals": 4,
    "tvdnn.trace.casts": 4,
    "tvdnn.trace.concatenations": 5,
    "tvdnn.trace.eager_fallback": 4,
    "tvdnn.trace.modules": 5,
    "tvdnn.trace.stacks": 5,
    "tvdnn.trace.state": 4,
    "tvdnn.trace.traced_call": 4,
    "tvdnn.trace.python": 5,
    "tvdnn.trace.guards": 6,
    "tvdnn.trace.proxy_attributes": 6,
    "tvdnn.trace.map_proxy": 7,
    "tvdnn.trace.example_inputs": 4,
    "tvdnn.trace.parameters": 5,
    "tvdnn.trace.op_emitter": 5,
    "tvdnn.trace.tensor_reads": 5,
    "tvdnn.trace.meta_values": 6,
    "tvdnn.trace.node_ops": 7,
    "tvdnn.trace.node_records": 7,
    "tvdnn.trace.tracer": 7,
    "tvdnn.trace": 8,
    "tvdnn.runtime.kernel_set": 2,
    "tvdnn.runtime": 10,
    "tvdnn.engine": 11,
    "tvdnn.report": 11,
    "tvdnn.experiment": 12,
    "tvdnn.cli": 13,
    "tvdnn.__main__": 14,
    "tvdnn": 12,
}
PURE = (
    "tvdnn.errors",
    "tvdnn.gc_pause",
    "tvdnn.units",
    "tvdnn.graph",
    "tvdnn.placement",
    "tvdnn.planner",
)
EXTRAS = {"matplotlib", "sklearn", "torchvision"}
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
        if own_part(source).startswith(PURE)
        for name in imported(source)
        if name.split(".")[0] in IMPURE
    ]
    assert not impure


def test_kernels_know_nothing_of_tvdnn() -> None:
    kernels = [path for path in SOURCES if own_part(path).startswith("tvdnn.kernels")]
    assert kernels
    known = {part for source in kernels for part in parts_imported(source)}
    assert all(part.startswith("tvdnn.kernels") for part in known)


def test_no_import_hides_in_a_function() -> None:
    """Only packages of extras are imported where they are used."""
    hidden = [
        f"{source.relative_to(ROOT)}:{inner.lineno}"
        for source in [*SOURCES, *SCRIPTS]
        for function in ast.walk(ast.parse(source.read_text()))
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
        for inner in ast.walk(function)
        if isinstance(inner, (ast.Import, ast.ImportFrom)) and not _is_of_extras(inner)
    ]
    assert not hidden


def _is_of_extras(node: ast.Import | ast.ImportFrom) -> bool:
    named = [each.name for each in node.names] if isinstance(node, ast.Import) else [node.module]
    return {str(name).partition(".")[0] for name in named} <= EXTRAS
