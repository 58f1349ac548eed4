import pytest
from redelivery_beanstalk.errors import RULES, TABLE, Refused

from redelivery.codes import Code
from redelivery.errors import Ambiguous, Fatal, Permanent, Retriable

#: What protocol.txt says that a server may answer in place of what was asked for.
WORDS = {"OUT_OF_MEMORY", "INTERNAL_ERROR", "BAD_FORMAT", "UNKNOWN_COMMAND"}
WORDS |= {"BURIED", "EXPECTED_CRLF", "JOB_TOO_BIG", "DRAINING", "NOT_FOUND", "NOT_IGNORED"}


def test_every_word_of_the_protocol_is_sorted_once():
    named = [word for words in RULES.values() for word in words]
    assert len(named) == len(set(named))
    assert set(named) == WORDS


@pytest.mark.parametrize(
    ("error", "expected", "code", "name"),
    [
        (Refused("JOB_TOO_BIG"), Permanent, Code.TOO_LARGE, "JOB_TOO_BIG"),
        (Refused("DRAINING"), Retriable, Code.UNAVAILABLE, "DRAINING"),
        (Refused("BURIED"), Ambiguous, Code.FULL, "BURIED"),
        (Refused("UNKNOWN_COMMAND"), Fatal, Code.UNSUPPORTED, "UNKNOWN_COMMAND"),
        (ConnectionResetError("cut"), Ambiguous, Code.CONNECTION_LOST, "ConnectionResetError"),
        (TimeoutError("no answer"), Ambiguous, Code.DEADLINE_EXCEEDED, "TimeoutError"),
    ],
)
def test_an_error_leaves_as_its_class_and_keeps_its_cause(error, expected, code, name):
    with pytest.raises(expected) as caught, TABLE.while_doing("sending"):
        raise error
    assert (caught.value.code, caught.value.native_code) == (code, name)
    assert caught.value.__cause__ is error
