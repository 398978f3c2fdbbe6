"""The cache on disk: a file for each machine and set of versions, written whole or not at all.

The folder is `TVDNN_CACHE`, or `tvdnn` in the user's cache folder.
"""

import hashlib
import json
import os
from functools import cache
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import torch
import triton

from .kernel_set import kernel_files


def cache_file(kind: str, hardware: str, *parts: str) -> Path:
    """The file of results of `kind` for a machine, versions of torch and Triton, and `parts`."""
    home = Path(os.environ.get("TVDNN_CACHE", Path.home() / ".cache" / "tvdnn"))
    words = (kind, hardware, torch.__version__, triton.__version__, *parts)
    return home / ("-".join(word.replace(" ", "_") for word in words) + ".json")


def write_whole(path: Path, data: Any) -> None:
    """Write JSON to a temporary file, then move it to `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile("w", dir=path.parent, delete=False) as partial:
        partial.write(json.dumps(data))
    Path(partial.name).replace(path)


@cache
def sources(*others: Path) -> str:
    """A hash of 12 digits of the sources of all kernels and of the files `others`."""
    digest = hashlib.sha256()
    for path in (*kernel_files(), *others):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
