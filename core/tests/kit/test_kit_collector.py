"""Garbage collection is put off, and goes on afterwards as it was."""

import gc

import pytest

from redelivery.kit.collector import without_collector


def test_collection_is_put_off_and_goes_on_afterwards_also_after_an_error() -> None:
    assert gc.isenabled()
    with without_collector():
        assert not gc.isenabled()
        with without_collector():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ValueError, match="no"), without_collector():
        raise ValueError("no")
    assert gc.isenabled()


def test_collection_that_somebody_has_switched_off_stays_off() -> None:
    gc.disable()
    try:
        with without_collector():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
