"""The table of errors: each class of nats-py has a rule, and the codes that matter most mean what they say."""

import pytest
from nats import errors as nats
from nats.js import errors as js

from redelivery.errors import Ambiguous, BrokerError, Fatal, Permanent, Retriable, Throttled
from redelivery.kit.errors import Code
from redelivery_nats.client.asking import is_missing
from redelivery_nats.errors import TABLE, ApiError, DeniedError, StatusError


def descendants(of: type[BaseException]) -> set[type[BaseException]]:
    found = {of}
    for each in of.__subclasses__():
        found |= descendants(each)
    return found


def test_every_error_of_the_client_has_a_class_of_ours() -> None:
    """Those of its JetStream context are not raised here: it is not used."""
    ours = {
        each
        for each in descendants(nats.Error)
        if each.__module__.startswith("nats") and each.__module__ != js.__name__
    }
    assert len(ours) > 20
    for each in ours:
        assert any(base in TABLE.by_class for base in each.__mro__), each


@pytest.mark.parametrize(
    ("code", "text", "kind", "word"),
    [
        (10059, "stream not found", Fatal, Code.NO_SUCH_DESTINATION),
        (10014, "consumer not found", Fatal, Code.NO_SUCH_DESTINATION),
        (10077, "maximum messages exceeded", Retriable, Code.FULL),
        (10077, "maximum bytes exceeded", Retriable, Code.FULL),
        (10047, "insufficient storage resources available", Retriable, Code.FULL),
        (10054, "message size exceeds maximum allowed", Permanent, Code.TOO_LARGE),
        (10097, "header size exceeds maximum allowed of 64k", Permanent, Code.TOO_LARGE),
        (10060, "expected stream does not match", Permanent, Code.INVALID_MESSAGE),
        (10008, "JetStream system temporarily unavailable", Retriable, Code.UNAVAILABLE),
        (10167, "too many requests", Throttled, Code.THROTTLED),
        (10109, "invalid operation on sealed stream", Fatal, Code.REJECTED),
        (10039, "JetStream not enabled for account", Fatal, Code.UNSUPPORTED),
        (10065, "subjects overlap with an existing stream", Fatal, Code.CONFLICT),
        (10074, "replicas > 1 not supported in non-clustered mode", Fatal, Code.MISCONFIGURED),
        (19999, "something new", Ambiguous, Code.UNAVAILABLE),
    ],
)
def test_a_code_of_jetstream_means_the_same_as_on_every_broker(
    code: int, text: str, kind: type[BrokerError], word: Code
) -> None:
    error = TABLE.error(ApiError({"code": 500, "err_code": code, "description": text}), "sending", rows=1)
    assert (type(error), error.code, error.native_code) == (kind, word, str(code))


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        (StatusError(503, "no responders"), Fatal, Code.NO_SUCH_DESTINATION),
        (StatusError(409, "Consumer Deleted"), Retriable, Code.UNAVAILABLE),
        (DeniedError("permissions violation"), Fatal, Code.NOT_AUTHORIZED),
        (nats.Error("nats: 'Authorization Violation'"), Fatal, Code.NOT_AUTHENTICATED),
        (nats.Error("nats: user authentication expired"), Fatal, Code.NOT_AUTHENTICATED),
        (nats.Error("nats: maximum connections exceeded"), Retriable, Code.FULL),
        (nats.Error("nats: empty response from server when expecting INFO message"), Ambiguous, Code.CONNECTION_LOST),
        (nats.NoServersError(), Retriable, Code.CONNECTION_LOST),
        (ConnectionResetError("reset"), Ambiguous, Code.CONNECTION_LOST),
        (TimeoutError(), Ambiguous, Code.DEADLINE_EXCEEDED),
        (nats.SecureConnWantedError(), Fatal, Code.TLS_FAILED),
    ],
)
def test_an_error_without_a_code_is_sorted_by_its_class_or_text(
    error: Exception, kind: type[BrokerError], code: Code
) -> None:
    told = TABLE.error(error, "sending", rows=1)
    assert (type(told), told.code) == (kind, code)


@pytest.mark.parametrize(
    ("code", "text", "missing"),
    [
        (10037, "no message found", True),
        (10043, "sequence 3 not found", True),
        (10057, "no message found", True),
        (10057, "stream store EOF", True),
        (10057, "message delete not permitted", False),
        (10057, "write orders/msgs/1.blk: input/output error", False),
        (10059, "stream not found", False),
    ],
)
def test_a_message_that_could_not_be_removed_is_not_missing(code: int, text: str, *, missing: bool) -> None:
    """Else its letter would be removed, and it would wait for nobody."""
    assert is_missing(ApiError({"code": 500, "err_code": code, "description": text})) is missing


def test_a_rows_own_subject_is_its_own_fault() -> None:
    for error in (StatusError(503, "no responders"), DeniedError("permissions violation")):
        assert isinstance(TABLE.error(error, "sending", rows=1, own_target=False), Permanent)
