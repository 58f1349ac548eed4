"""Client instances and forked processes."""

from __future__ import annotations

import gc
import multiprocessing
from typing import Any

import pytest
from confluent_kafka import Producer

from redelivery_kafka.client import instances


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_does_not_free_a_client_that_is_garbage_in_its_parent() -> None:
    """In a reference cycle, as a client is with the object whose method is its callback."""
    gc.collect()
    gc.disable()
    try:
        cycle: dict[str, Any] = {}
        cycle["client"] = Producer({"bootstrap.servers": "127.0.0.1:1", "log_level": 0, "error_cb": cycle.get})
        cycle["client"].poll(0.5)  # it has connected, or tried to
        instances.release(cycle["client"])
        cycle["self"] = cycle
        del cycle
        child = multiprocessing.get_context("fork").Process(target=gc.collect)
        child.start()
        child.join(20)
        hangs = child.is_alive()
        child.kill()
        child.join()
    finally:
        gc.enable()
        gc.collect()
    assert not hangs
    assert child.exitcode == 0
