"""All results of a GPU made again: the jobs behind the files in bench/results, one to a GPU.

    python -m bench.everything -o FOLDER
    python -m bench.everything -o FOLDER --only compare_resnet50_bf16 largest
    python -m bench.everything -o FOLDER --seconds 590

A file of FOLDER is there once all commands behind it have ended well, with the rows of each in
their order; torch's are those in bench/results where they were faster (bench.kept_peers). What is
there is not made again. With `--seconds` the command ends in time, and another makes what is left.
What a command prints is beside them. Jobs take turns at being timed (bench.training). Those that
take most of the host wait until all others have ended.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import inf
from pathlib import Path
from queue import Empty, Queue
from time import monotonic
from typing import Any

import torch

from bench.command_line import parser_of
from bench.kept_peers import with_faster_peers

EAGER = "--eager-only --parts"
OURS = "--no-peers --inside"
LARGEST = ("alexnet", "vgg16", "inception_v4", "resnet50", "resnet101", "resnet152")
GISTS = ("vgg16", "inception_v4", "googlenet_lrn", "alexnet nin overfeat")
TUNED = ("resnet50", "vgg16")
SWEPT = ("vgg16", "googlenet", "densenet121", "resnet50")
CHECKED = (  # the gradients of few elements of one ask for many seeds
    "resnet50 resnet152 densenet121 googlenet inception_v3 convnext_tiny",
    "efficientnet_b0 --seeds 80",
    "fcn_resnet50",
)
JOBS: Mapping[str, Sequence[str]] = {  # by file its commands: the longest first, and last of each
    "largest": [f"steps largest --nets {net}" for net in LARGEST],
    "budgets": [f"steps budgets --nets {net}" for net in SWEPT],
    "compare_resnet2500_tf32": [
        f"steps compare --net resnet2500 --batch 16 --dtype tf32 --steps 11 {OURS} 12"
    ],
    "compare_resnet1920_tf32": [
        f"steps compare --net resnet1920 --batch 16 --dtype tf32 {OURS} 12"
    ],
    "compare_resnet3840_tf32": [
        f"steps compare --net resnet3840 --batch 16 --dtype tf32 --steps 8 {part}"
        for part in ("--no-peers", f"--no-keep {OURS} 12")
    ],
    "gist_fp32": [f"steps gist --dtype fp32 --nets {net}" for net in GISTS],
    "gist_tf32": ["steps gist --dtype tf32"],
    "superneurons_tf32": ["steps superneurons --dtype tf32"],
    "vgg16_bf16": ["steps matrix --dtype bf16"],
    "vgg16_tf32": ["steps matrix --dtype tf32"],
    "deep": ["steps deep"],
    "soak": ["steps soak"],
    "tuned": [f"steps tuned --nets {net}" for net in TUNED],
    "accuracy_bf16": [f"accuracy --dtype bf16 --nets {nets}" for nets in CHECKED],
    "accuracy_tf32": [f"accuracy --dtype tf32 --nets {nets}" for nets in CHECKED],
    "compare_vgg16_512_tf32": [
        f"steps compare --batch 512 --dtype tf32 --policy tvdnn-ilp {OURS} 4"
    ],
    "compare_vgg16_bf16": ["steps compare --inside 2.5"],
    "compare_vgg16_tf32": ["steps compare --dtype tf32 --parts --inside 4"],
    "compare_vgg16_bn_bf16": [f"steps compare --net vgg16_bn --batch 128 {OURS} 2.23 1.7"],
    "compare_resnet50_bf16": ["steps compare --net resnet50 --parts --inside 4"],
    "compare_resnet152_bf16": [f"steps compare --net resnet152 --batch 128 {EAGER}"],
    "compare_unet_bf16": [f"steps compare --net unet --batch 8 {EAGER} --inside 14"],
    "compare_convnext_tiny_bf16": [
        f"steps compare --net convnext_tiny --batch 128 {EAGER} --inside 3.9"
    ],
    "compare_efficientnet_b0_bf16": [f"steps compare --net efficientnet_b0 --batch 128 {EAGER}"],
    "compare_inception_v3_bf16": [f"steps compare --net inception_v3 --batch 128 {EAGER}"],
    "compare_googlenet_bf16": [f"steps compare --net googlenet --batch 128 {EAGER}"],
    "compare_fcn_resnet50_bf16": [f"steps compare --net fcn_resnet50 --batch 16 {EAGER}"],
    "compare_alexnet_bf16": ["steps compare --net alexnet --batch 128 --parts --autocast"],
    "compare_densenet121_bf16": [
        f"steps compare --net densenet121 --batch 128 --cold {EAGER} --inside 4.05"
    ],
    "compare_unet_4096_bf16": [
        f"steps compare --net unet --batch 1 --image-size 4096 --steps 5 {part} {OURS} 6"
        for part in ("--host 20", "--no-keep --policy tvdnn-heuristic --host 40")
    ],
    "compare_unet_8192_bf16": [
        f"steps compare --net unet --batch 1 --image-size 8192 --steps 5 --host 60 {OURS} 24"
    ],
}
RESULTS = Path(__file__).parent / "results"
LIMIT_S = 900  # of a command: three times what the longest takes
ALONE = ("compare_densenet121_bf16", "compare_unet_8192_bf16")  # cold start; 60 GiB of host memory


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--only", nargs="+", choices=JOBS, default=[*JOBS], metavar="FILE")
    parser.add_argument("--gpus", type=int, default=torch.cuda.device_count(), help="if not all")
    parser.add_argument("--seconds", type=float, default=inf, help="after which the command ends")
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    end_s = monotonic() + options.seconds
    if options.gpus < 1:
        parser.error("there is no GPU")
    options.output.mkdir(parents=True, exist_ok=True)
    due = [name for name in options.only if not _file(options.output, name).exists()]
    beside = [name for name in due if name not in ALONE]
    alone = [name for name in due if name in ALONE]
    _work_off(beside, options.gpus, options.output, end_s)
    _work_off(alone, 1, options.output, end_s)
    missing = [name for name in due if not _file(options.output, name).exists()]
    sys.exit(f"without results: {', '.join(missing)}" if missing else 0)


def _work_off(names: Sequence[str], gpus: int, folder: Path, end_s: float) -> None:
    """Run the commands of these files on a number of GPUs, until `end_s` by `monotonic`."""
    left: Queue[tuple[str, int]] = Queue()
    for name in names:
        for number in reversed(range(len(JOBS[name]))):
            left.put((name, number))
    with ThreadPoolExecutor(gpus) as pool:
        list(pool.map(lambda gpu: _work(left, gpu, gpus, folder, end_s), range(gpus)))


def _work(left: Queue[tuple[str, int]], gpu: int, gpus: int, folder: Path, end_s: float) -> None:
    """Run commands on one GPU, with its share of the cores, while there are any left and time."""
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))[gpu::gpus]))
    while monotonic() < end_s:
        try:
            name, number = left.get_nowait()
        except Empty:
            return
        part = _file(folder, f"{name}.{number}")
        if not part.exists():
            _run(name, number, part, gpu, cores, end_s)
        join(folder, name)


def _run(name: str, number: int, part: Path, gpu: int, cores: str, end_s: float) -> None:
    """Run one command; where it takes too long, its processes say where they are, and end."""
    module, *arguments = JOBS[name][number].split()
    made = part.with_suffix(".unfinished")
    command = [sys.executable, "-m", f"bench.{module}", *arguments, "-o", str(made)]
    seen = os.environ | {"CUDA_VISIBLE_DEVICES": str(gpu), "PYTHONFAULTHANDLER": "1"}
    begin = monotonic()
    with part.with_suffix(".log").open("w") as log:
        process = subprocess.Popen(
            ["taskset", "-c", cores, *command],
            stdout=log,
            stderr=log,
            env=seen,
            start_new_session=True,
        )
        try:
            code = process.wait(min(LIMIT_S, max(0.0, end_s - begin)))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGABRT)
            code = process.wait()
    if code == 0:
        made.rename(part)
    print(f"{name}.{number} {code} {monotonic() - begin:.0f}s", flush=True)


def join(folder: Path, name: str, before: Path = RESULTS) -> None:
    """Write the file of all rows, each with its commit, once its parts are there.

    Torch's rows are those of the folder `before` where those were faster.
    """
    parts = [_file(folder, f"{name}.{number}") for number in range(len(JOBS[name]))]
    if all(part.exists() for part in parts):
        documents = [json.loads(part.read_text()) for part in parts]
        rows = [
            row | {"commit": document["environment"]["commit"]}
            for document in documents
            for row in document["rows"]
        ]
        for row in rows:
            compare_with_keep(row, rows)
        document, known = documents[0] | {"rows": rows}, _file(before, name)
        if known.exists():
            document = with_faster_peers(document, json.loads(known.read_text()))
        _file(folder, name).write_text(json.dumps(document, indent=1) + "\n")


def compare_with_keep(row: dict[str, Any], rows: Sequence[dict[str, Any]]) -> None:
    """Say whether a row, if it is beside no keep yet, has the bits of another command's keep."""
    for kept in rows:
        alike = all(row.get(key) == kept.get(key) for key in ("net", "batch", "dtype"))
        ran = row.get("weights") and kept.get("weights")
        apart = row.get("equal") is None and row.get("slowdown") is None
        if alike and ran and apart and kept["policy"] == "keep" != row["policy"]:
            row["equal"] = all(row[key] == kept[key] for key in ("weights", "losses"))
            row["slowdown"] = row["step_s"] / kept["step_s"]


def _file(folder: Path, name: str) -> Path:
    return folder / f"{name}.json"


if __name__ == "__main__":
    main()
