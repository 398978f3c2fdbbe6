"""Costs of which another process's planning waits at a gate, or fails; torch is not imported."""

import os
from dataclasses import dataclass
from pathlib import Path

from tests.support.wrapped_costs import WrappedCosts
from tvdnn.graph import Pass
from tvdnn.planner.ir.costs import Forms


@dataclass(frozen=True)
class Elsewhere(WrappedCosts):
    """`costs`; before the first launch that another process predicts it does `_arrive`."""

    pid: int

    def launch_s(self, pass_: Pass, rows: int, forms: Forms = ()) -> float:
        if os.getpid() != self.pid:
            self._arrive()
        return self.costs.launch_s(pass_, rows, forms)

    def _arrive(self) -> None:
        raise NotImplementedError


@dataclass(frozen=True)
class Gated(Elsewhere):
    """The other process tells its number and waits until the gate is open."""

    gate: "Gate"

    def _arrive(self) -> None:
        self.gate.pass_through()


@dataclass(frozen=True)
class Exhausted(Elsewhere):
    """The other process finds no memory."""

    def _arrive(self) -> None:
        raise MemoryError("no memory for a plan")


_told = list[int]()


@dataclass(frozen=True)
class Gate:
    """Two named pipes in a folder: at one a process tells its number, at the other it waits."""

    folder: Path

    @classmethod
    def at(cls, folder: Path) -> "Gate":
        os.mkfifo(folder / "told")
        os.mkfifo(folder / "gate")
        return cls(folder)

    def pass_through(self) -> None:
        """Tell this process's number once, and wait until the gate is open."""
        if not _told:
            _told.append(os.getpid())
            (self.folder / "told").write_text(str(os.getpid()))
        with (self.folder / "gate").open():
            pass

    def await_one(self) -> int:
        """Wait for a process to come to the gate; its number."""
        return int((self.folder / "told").read_text())

    def open(self) -> None:
        """Let all pass from now on."""
        os.open(self.folder / "gate", os.O_RDWR)
