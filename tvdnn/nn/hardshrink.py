"""Hardshrink over the kernels."""

import torch

from .activation import Elementwise


class Hardshrink(Elementwise, torch.nn.Hardshrink, kind="hardshrink", bound="lambd"):
    """torch.nn.Hardshrink, run by tvdnn's kernels."""
