"""An SDK for a test. The process's own providers stay as they are: they can be set only once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from recording import Recorded

from redelivery.telemetry.current import using


@pytest.fixture
def recorded() -> Iterator[Recorded]:
    found = Recorded()
    with using(found.tracers, found.meters):
        yield found
    found.meters.shutdown()
    found.tracers.shutdown()
