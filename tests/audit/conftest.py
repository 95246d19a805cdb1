"""What several campaigns are tried on."""

from collections.abc import Iterator

import pytest

from audit import faults
from audit.scratch import Scratch, scratch


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scratch]:
    """A copy of the source tree with what is compiled for the CPU, which tests leave as it is."""
    faults.build()
    with scratch(tmp_path_factory.mktemp("tree")) as copied:
        yield copied
