"""Progress: how a long task tells which stage it is in."""

from collections.abc import Callable

StageReport = Callable[[str, float], None]  # name of the stage, fraction of the whole task done
