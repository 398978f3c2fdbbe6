"""Op definitions: what each op reads, writes and costs, as data, and the kernels it launches."""

from .expand import Settings, expand
from .registry import DEFINITIONS

__all__ = ["DEFINITIONS", "Settings", "expand"]
