"""The CUDA driver's functions. Only modules that run on a GPU import this one."""

from typing import Any

try:
    from cuda.bindings import driver as _driver
except ImportError:  # on a machine without CUDA, where nothing calls the driver
    _driver = None

driver: Any = _driver
