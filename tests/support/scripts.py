"""Scripts in processes of their own, where Triton compiles: it interprets in all of a process."""

import subprocess
import sys

from bench.offline.compiler import ROOT, without_interpreter


def run_compiler(script: str, *words: str, **environment: str) -> str:
    """What a script prints that is run with these words and variables, without the interpreter.

    Fails with what it wrote to its errors where it ends with another status than 0.
    """
    done = subprocess.run(
        [sys.executable, "-c", script, *words],
        cwd=ROOT,
        env=without_interpreter() | environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
