"""What a measurement ran on: machine, versions and commit."""

import os
import platform
import subprocess

import torch
import triton

import tvdnn


def software() -> dict[str, str]:
    """Versions and commit of a run without a GPU; the commit is that of `TVDNN_COMMIT`."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "commit": os.environ.get("TVDNN_COMMIT", "unknown"),
    }


def environment() -> dict[str, str]:
    """The machine, versions and commit of this run."""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    drivers = subprocess.run(query, capture_output=True, text=True, check=True).stdout
    return {
        "gpu": torch.cuda.get_device_name(),
        "driver": drivers.splitlines()[0],  # a line for each GPU
        "cudnn": str(torch.backends.cudnn.version()),
        "triton": triton.__version__,
        "tvdnn": tvdnn.__version__,
        **software(),
    }
