"""Progress reports of long tasks."""

from collections.abc import Callable

StageReport = Callable[[str, float], None]  # name of the stage, fraction of the whole task done
