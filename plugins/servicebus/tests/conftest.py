"""The stand-in that the tests of it share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from standin_bench import Bench


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.client.close()
    made.server.stop()
