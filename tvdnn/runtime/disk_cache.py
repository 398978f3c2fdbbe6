"""What is kept on disk: files by machine and versions, each written whole or not at all.

The folder is `TVDNN_CACHE`, else tvdnn in the user's cache folder.
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
    """Where results of a kind lie for a machine, the present torch and triton, and other parts."""
    home = Path(os.environ.get("TVDNN_CACHE", Path.home() / ".cache" / "tvdnn"))
    words = (kind, hardware, torch.__version__, triton.__version__, *parts)
    return home / ("-".join(word.replace(" ", "_") for word in words) + ".json")


def write_whole(path: Path, data: Any) -> None:
    """Write JSON in one go."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile("w", dir=path.parent, delete=False) as partial:
        partial.write(json.dumps(data))
    Path(partial.name).replace(path)


@cache
def sources(*beside: Path) -> str:
    """A short hash of the kernels' sources, and of files beside them."""
    digest = hashlib.sha256()
    for path in (*kernel_files(), *beside):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
