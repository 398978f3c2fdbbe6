"""The folder in which workers share what processes that train together have found."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory, testrun_uid: str) -> Path:
    """A folder of this run of the tests, for all of its workers."""
    folder = tmp_path_factory.getbasetemp().parent / f"ranks-{testrun_uid}"
    folder.mkdir(exist_ok=True)
    return folder
