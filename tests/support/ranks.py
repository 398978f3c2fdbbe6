"""Processes that train together: one start of four runs the cases of all modules.

A case is a function of a rank, named `case_...`. It returns what its rank has found. Some cases are
of the first two ranks alone.
"""

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import torch
from torch import distributed

from bench.offline.compiler import ROOT


class EndOfProcessError(Exception):
    """Ends a rank in the last of its cases, as if it were killed."""


WORLD: Final = 4
MODULES: Final = tuple(
    f"tests.distributed.{name}" for name in ("data_parallel_cases", "shard_cases", "trainer_cases")
)  # a rank ends in the last case of the last one
_SCRIPT: Final = "from tests.support.ranks import main; main()"
TIMEOUT: Final = timedelta(seconds=60)
LIMIT_S: Final = 300.0  # of all cases, on a busy machine
Found = Mapping[str, Any]  # by case


def found_by_ranks(module: str, folder: Path) -> list[Found]:
    """By rank, what the cases of a module have found. The first caller runs those of all modules.

    `folder` is shared by all callers.
    """
    results = [folder / f"{module}.{rank}.pt" for rank in range(WORLD)]
    with (folder / "ranks.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        failed = folder / "failed.txt"
        assert not failed.exists(), failed.read_text()
        if not all(path.exists() for path in results):
            command = [sys.executable, "-c", _SCRIPT, str(folder)]
            done = subprocess.run(
                command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S
            )
            if done.returncode:
                failed.write_text(done.stderr)
            assert done.returncode == 0, done.stderr
    return [torch.load(path, weights_only=False) for path in results]


def main() -> None:
    """Run the cases of all modules in four copies of this process, which has imported them."""
    folder, modules = Path(sys.argv[1]), [*map(import_module, MODULES)]
    torch.set_num_threads(1)
    children = [_forked(modules, rank, folder) for rank in range(WORLD)]
    failed = [os.waitpid(child, 0)[1] for child in children]
    sys.exit(any(failed))


def _forked(modules: Sequence[ModuleType], rank: int, folder: Path) -> int:
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        store = f"file://{folder}/store"
        together: dict[str, Any] = {"rank": rank, "world_size": WORLD, "timeout": TIMEOUT}
        distributed.init_process_group("gloo", init_method=store, **together)
        for module in modules:
            path = folder / f"{module.__name__}.{rank}.pt"
            torch.save(dict(_found_by(module, rank)), path.with_suffix(".part"))
            path.with_suffix(".part").rename(path)
        status = 0
    except BaseException:  # noqa: BLE001
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(status)


def _found_by(module: ModuleType, rank: int) -> Iterator[tuple[str, Any]]:
    for name, each in vars(module).items():
        if name.startswith("case_"):
            try:
                yield name.removeprefix("case_"), each(rank)
            except EndOfProcessError:
                return
