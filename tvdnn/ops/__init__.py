"""Op definitions: what each op of a network reads, writes and costs, as data, and which kernels its passes launch."""

from .expand import Settings, expand
from .registry import DEFINITIONS, supported

__all__ = ["DEFINITIONS", "Settings", "expand", "supported"]
