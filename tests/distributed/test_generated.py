"""Random networks trained by processes that are started apart."""

import os
import subprocess
import sys

import pytest

from bench.offline.compiler import ROOT

# Their parameters are computed from others, whose gradients are summed behind the step.
# Steps of the last two call a function that no other process can be sent.
SEEDS = "10019115,10019135,10019695,10020784,10022104"


@pytest.mark.slow
def test_random_networks_have_the_bits_of_one_process() -> None:
    words = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    command = [sys.executable, *words, "-m", "bench.generated.together", "--seeds", SEEDS]
    alone = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=os.environ | alone, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == ["trainer {'same': 5}", "virtualize {'same': 5}"]
