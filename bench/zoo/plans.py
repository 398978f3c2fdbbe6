"""The zoo's networks planned without a GPU: which are refused, and what keep and auto would take.

    python -m bench.zoo.plans -o bench/results/plans/zoo.json
    python -m bench.zoo.plans --nets resnet50 rexnet_100 --dtype tf32 -o rows.json

Each network is traced on the meta device at its full batch and planned for an H100 under keep,
under auto without a budget, and under auto in half of the memory that torch.compile was measured to
take there. Launches take as long as the package's own measurements on an H100 say, others as their
kernels' rates there suggest. A row has the planned peaks and the simulated seconds of a step; or,
of a network that tvdnn refuses, the message.
Rows are written as they come, and rows of the same commit and versions stay. 6 minutes of a core.
"""

import json
import sys
from pathlib import Path

from bench.command_line import parser_of
from bench.environment import software
from bench.zoo.library import make
from bench.zoo.networks import NAMES, NETWORKS
from bench.zoo.planned import planned


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--nets", nargs="+", default=NAMES, choices=NAMES)
    parser.add_argument("--dtype", choices=("bf16", "tf32"), default="bf16")
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    found = json.loads(options.output.read_text()) if options.output.exists() else {}
    rows = found["rows"] if found.get("environment") == software() else []
    known = {(row["net"], row["dtype"]) for row in rows}
    for network in NETWORKS:
        if network.net not in options.nets or (network.net, options.dtype) in known:
            continue
        net = make(network).to("meta")  # RegNet reads values of tensors as it is made
        rows.append(planned(network, net, options.dtype))
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
        document = {"title": "The zoo's networks, planned", "rows": rows, "environment": software()}
        options.output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
