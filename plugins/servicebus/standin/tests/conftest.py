"""The stand-in that the tests of it share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from standin_namespace import Namespace


@pytest.fixture(scope="module")
def namespace() -> Iterator[Namespace]:
    made = Namespace()
    yield made
    made.client.close()
    made.server.stop()
