import filelock
import lmdb
import pytest
from redelivery_lmdb.errors import RULES, TABLE

from redelivery.codes import Code
from redelivery.errors import Ambiguous, Fatal, Retriable


def descendants(error):
    return {error}.union(*(descendants(each) for each in error.__subclasses__()))


def test_every_error_of_the_client_is_sorted_once():
    named = [error for errors in RULES.values() for error in errors]
    assert len(named) == len(set(named))
    assert descendants(lmdb.Error) <= set(named)


@pytest.mark.parametrize(
    ("error", "expected", "code"),
    [
        (lmdb.MapFullError("full"), Retriable, Code.FULL),
        (lmdb.DiskError("gone"), Ambiguous, Code.UNCONFIRMED),
        (lmdb.CorruptedError("torn"), Fatal, Code.CORRUPT),
        (filelock.Timeout("writer.lock"), Retriable, Code.DEADLINE_EXCEEDED),
        (PermissionError("not yours"), Fatal, Code.NOT_AUTHORIZED),
    ],
)
def test_an_error_leaves_as_its_class_and_keeps_its_cause(error, expected, code):
    with pytest.raises(expected) as caught, TABLE.while_doing("writing"):
        raise error
    assert (caught.value.code, caught.value.native_code) == (code, type(error).__name__)
    assert caught.value.__cause__ is error
