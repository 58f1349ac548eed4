import filelock
import lmdb
import pytest
from redelivery_lmdb.errors import CLASSES, sorted_errors

from redelivery.errors import Ambiguous, Fatal, Retriable


def descendants(error):
    return {error}.union(*(descendants(each) for each in error.__subclasses__()))


def test_every_error_of_the_client_is_sorted_once():
    named = [error for errors in CLASSES.values() for error in errors]
    assert len(named) == len(set(named))
    assert descendants(lmdb.Error) <= set(named)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (lmdb.MapFullError("full"), Retriable),
        (lmdb.DiskError("gone"), Ambiguous),
        (lmdb.CorruptedError("torn"), Fatal),
        (filelock.Timeout("writer.lock"), Retriable),
        (PermissionError("not yours"), Fatal),
    ],
)
def test_an_error_leaves_as_its_class_and_keeps_its_cause(error, expected):
    with pytest.raises(expected) as caught, sorted_errors():
        raise error
    assert caught.value.native_code == type(error).__name__
    assert caught.value.__cause__ is error
