"""Fused multiply-adds: every kernel is compiled with them, whatever Triton's default is.

Triton 3.10 fuses no more by default. The launch of a kernel could ask for it, at the cost of an
argument of every launch. Here the kernel asks when it is compiled.
"""

from collections.abc import Mapping
from typing import Any, Final

from triton import JITFunction

# The method that turns a launch's options into those of a compilation, in versions 3.6 to 3.9.
_PACK: Final = "_pack_args"


def fuse_multiply_adds(kernel: JITFunction) -> None:
    """Let compilations of a kernel fuse products with sums, unless a launch says otherwise.

    Does nothing in versions of Triton that compile another way.
    """
    pack = getattr(kernel, _PACK, None)
    if pack is None:
        return

    def packed(backend: Any, options: Mapping[str, Any], *arguments: Any) -> Any:
        return pack(backend, {"enable_fp_fusion": True, **options}, *arguments)

    setattr(kernel, _PACK, packed)
