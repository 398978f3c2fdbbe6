"""A worker process: `python -m tvdnn.workers PARENT NICENESS` runs its parent's jobs.

A job is a pickled function without arguments, read from standard input; its answer is written to
what was standard output. The worker ends as soon as its parent does.
"""

import os
import pickle
import sys
from queue import SimpleQueue
from threading import Thread
from traceback import format_exception
from typing import BinaryIO

from .attempt import Attempt
from .messages import receive, send
from .parent import end_with


def main() -> None:
    parent, niceness = sys.argv[1:]
    end_with(int(parent))
    os.nice(int(niceness))
    requests, answers = sys.stdin.buffer, _own_output()
    jobs = SimpleQueue[bytes]()
    Thread(target=_read, args=(requests, jobs), daemon=True).start()
    while True:
        send(answers, _answer(jobs.get()))


def _own_output() -> BinaryIO:
    """Standard output for answers alone; prints go to standard error."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return answers


def _read(requests: BinaryIO, jobs: "SimpleQueue[bytes]") -> None:
    """Queue the parent's jobs; end this process when the parent closes the pipe or dies."""
    while (job := receive(requests)) is not None:
        jobs.put(job)
    os._exit(0)


def _answer(job: bytes) -> bytes:
    """The pickled result of a job, or its exception and the traceback as text."""
    answer = b""
    with Attempt() as attempt:
        answer = pickle.dumps((True, pickle.loads(job)()))
    error = attempt.error
    if error is None:
        return answer
    text = "".join(format_exception(type(error), error, error.__traceback__))
    with Attempt() as sent:
        pickle.loads(pickle.dumps(error))
    return pickle.dumps((False, (error if sent.error is None else None, text)))


if __name__ == "__main__":
    main()
