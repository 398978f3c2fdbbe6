"""keep: every map stays on the device until its last use. What lossless policies must equal."""

from ...graph import Graph
from ..ir.plan import Plan
from ..lowering.segments import Variant, segments


def keep(graph: Graph) -> Plan:
    """The plan that moves nothing."""
    return Plan("keep", segments(graph, {}, Variant.KEEP))
