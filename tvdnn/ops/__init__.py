"""Operators: what each kind of op is in torch, its passes as data, and the kernels it launches."""

from .expand import Settings, expand

__all__ = ["Settings", "expand"]
