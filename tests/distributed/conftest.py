"""The folder in which workers share what processes that train together have found."""

from pathlib import Path

import pytest

from tests.support.ranks import Found, found_by_ranks


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory, testrun_uid: str) -> Path:
    """A folder of this run of the tests, for all of its workers."""
    folder = tmp_path_factory.getbasetemp().parent / f"ranks-{testrun_uid}"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="module")
def ranks(request: pytest.FixtureRequest, shared_folder: Path) -> list[Found]:
    """By rank, what the `CASES` of a module of tests have found."""
    return found_by_ranks(request.module.CASES.__name__, shared_folder)
