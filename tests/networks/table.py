"""The table of test networks: the rows of every module of this folder that has some."""

from importlib import import_module
from pathlib import Path

from tests.networks.case import NetworkCase

_FILES = sorted(Path(__file__).parent.glob("*.py"))
_MODULES = [import_module(f"tests.networks.{path.stem}") for path in _FILES if path.stem != "table"]
NETWORKS: dict[str, NetworkCase] = {
    f"{module.__name__.rpartition('.')[2]}: {name}": case
    for module in _MODULES
    for name, case in getattr(module, "NETWORKS", {}).items()
}
