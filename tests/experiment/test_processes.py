"""Processes side by side: jobs, progress and ends."""

import os
import pickle
from contextlib import closing
from dataclasses import replace
from functools import partial

import pytest

from tests.support.simulated import h200
from tests.support.tuning import BUDGET, lenet
from tvdnn.errors import HostMemoryError
from tvdnn.experiment.processes import Processes
from tvdnn.experiment.request import make_graph
from tvdnn.experiment.trials import Job
from tvdnn.graph import ChunkSizes
from tvdnn.planner.ir.settings import Choice
from tvdnn.units import KIB


def test_jobs_of_another_process_are_the_same() -> None:
    request = replace(lenet(), chunks=ChunkSizes(16 * KIB))
    costs = h200(make_graph(request, "auto", lambda *_: None))
    for budget, fits in ((BUDGET, True), (600_000, False)):
        job = Job(request, Choice("vdnn-all"), budget, costs)
        sent = pickle.loads(pickle.dumps(job.seconds_if_any))
        assert sent() == job.seconds_if_any()
        assert (sent() is not None) == fits


def test_processes_side_by_side_tell_what_ends_them() -> None:
    with closing(Processes(1)) as one, closing(Processes(2)) as two:
        progress: list[float] = []
        here = dict(one.each([os.getpid] * 2, progress.append))
        assert here == dict.fromkeys(range(2), os.getpid())
        assert progress == [0.0, 0.5, 1.0]
        told = dict(two.each([os.getpid] * 2, progress.append))
        assert told.keys() == {0, 1}
        assert os.getpid() not in told.values()
        with pytest.raises(HostMemoryError, match="1 GB"):
            list(two.each([partial(os._exit, 1)] * 2, progress.append))
