"""Options that several commands share."""

from typing import Annotated

import typer

from .. import models
from ..planner import hardware
from ..planner.planning import POLICIES

BASE_POLICIES = ", ".join(policy for policy in POLICIES if ":" not in policy)

Batch = Annotated[int, typer.Option(min=1, help="Samples in a batch.")]
ImageSize = Annotated[
    int | None, typer.Option(min=1, help="Side of the images; the network's own if not given.")
]
Dtype = Annotated[
    str | None,
    typer.Option(help="bf16, tf32 or fp32; if not given bf16, or fp32 where a CPU computes."),
]
ChunkSize = Annotated[
    str | None, typer.Option(help="Bytes of a section, the unit of copies: 4MiB, 16MiB, ...")
]
HostBudget = Annotated[
    str | None, typer.Option(help="Most pinned host memory: 64GiB, ... or none.")
]
Policy = Annotated[
    str, typer.Option(help=f"{BASE_POLICIES}; vdnn policies take :m or :p, and :sync after.")
]
Profile = Annotated[
    str | None,
    typer.Option("--hardware", help=f"Simulate on a profile: {', '.join(hardware.names())}."),
]
JsonFile = Annotated[
    str | None, typer.Option("--json", help="Write the results to this file; - is standard output.")
]
NET_HELP = f"One of {', '.join(models.names())}."
