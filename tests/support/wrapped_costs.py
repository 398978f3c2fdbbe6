"""Costs that delegate to others, for subclasses to change. Torch is not imported."""

from dataclasses import dataclass

from tvdnn.graph import Buffer, Form, Pass
from tvdnn.planner.ir.costs import Costs, Forms, Links


@dataclass(frozen=True)
class WrappedCosts:
    """The same as `costs`, said to be measured."""

    costs: Costs
    measured = True

    @property
    def hardware(self) -> str:
        return self.costs.hardware

    @property
    def links(self) -> Links:
        return self.costs.links

    def launch_s(self, pass_: Pass, rows: int, forms: Forms = ()) -> float:
        return self.costs.launch_s(pass_, rows, forms)

    def recode_s(self, buffer: Buffer, rows: int, source: Form, target: Form) -> float:
        return self.costs.recode_s(buffer, rows, source, target)

    def min_pass_s(self, pass_: Pass) -> float:
        return self.costs.min_pass_s(pass_)
