"""Codes: the same bad input gives the same code on every broker, so users can filter by it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import Final

import pytest

from redelivery.codes import Code
from redelivery.contract.broker import Sender
from redelivery.contract.message import Message
from redelivery.errors import BrokerError, ConfigurationError, NotSent
from redelivery_conformance.harness import TRIED_BYTES
from redelivery_conformance.statements import Statements, broker_has
from redelivery_conformance.subject import NotApplicable, Subject
from redelivery_conformance.suite.failures import over

#: An invalid name and the name of a missing object. Not every broker distinguishes them.
NO_TARGET: Final = {Code.NO_SUCH_DESTINATION, Code.INVALID_DESTINATION}
#: Some brokers answer a wrong password like a missing permission, so that names cannot be guessed.
NO_LOGIN: Final = {Code.NOT_AUTHENTICATED, Code.NOT_AUTHORIZED}
#: If a broker does not answer, the client's error depends on the request that it was waiting for.
NO_ANSWER: Final = {Code.CONNECTION_LOST, Code.DEADLINE_EXCEEDED, Code.UNAVAILABLE}
#: If the broker is a file, only its folder can be missing.
NO_FILE: Final = NO_ANSWER | {Code.NO_SUCH_DESTINATION}

#: A client's native code is one word, not a sentence.
WORD: Final = 100


class Codes(Statements):
    """`BrokerError.code` and `native_code`."""

    @broker_has("send")
    @pytest.mark.parametrize(
        "limit", ["message_bytes", "headers_bytes", "header_value_bytes", "header_count", "id_bytes"]
    )
    def test_a_row_over_a_limit_is_too_large(self, subject: Subject, limit: str) -> None:
        most = getattr(subject.capabilities.limits, limit)
        if most is None or most > TRIED_BYTES:
            raise NotApplicable(f"limits.{limit} is {most}")
        needs = {"id_bytes": "ids", "message_bytes": "send"}.get(limit, "headers")
        if not getattr(subject.capabilities, needs):
            raise NotApplicable(f"capability {needs} is none")
        _say({Code.TOO_LARGE}, _errors(subject, subject.sender, over(limit, most)))

    @broker_has("send", "destinations")
    def test_a_row_for_a_target_that_does_not_exist_says_so(self, subject: Subject) -> None:
        row = Message(value=b"nowhere", destination=_nowhere(subject))
        _say(NO_TARGET, _errors(subject, subject.sender, row))

    @broker_has("send", "destinations")
    def test_a_url_whose_target_does_not_exist_says_so(self, subject: Subject) -> None:
        nowhere = _nowhere(subject)
        try:
            url = subject.broker.sibling(nowhere)
            found = _errors(subject, lambda: subject.sender(url), Message(value=b"nowhere"))
        except ConfigurationError:
            raise NotApplicable("a target that cannot be has no URL") from None
        _say(NO_TARGET, found)

    @broker_has("send")
    def test_a_wrong_login_is_an_error_of_the_login(self, subject: Subject) -> None:
        options = subject.place.wrong_login()
        if options is None:
            raise NotApplicable("nobody logs in here")
        sender = lambda: subject.keep(subject.connect(options=options).sender())  # noqa: E731 - like the others
        _say(NO_LOGIN, _errors(subject, sender, Message(value=b"stranger")))

    @broker_has("send")
    def test_a_deadline_that_has_passed_says_so(self, subject: Subject) -> None:
        """A broker that stores at once may still store the row."""
        sender = subject.sender()
        subject.send(Message(value=b"warm"), sender=sender)
        batch = subject.batch([Message(value=b"late")])
        settled = subject.settle(sender, batch, deadline=time.monotonic() - 0.001)[batch.number]
        found = [each for each in (settled.error, *(each.error for each in settled.failures)) if each is not None]
        _say({Code.DEADLINE_EXCEEDED}, found, least=0)

    @broker_has("send")
    def test_a_broker_that_does_not_exist_is_a_lost_connection(self, subject: Subject) -> None:
        broker = subject.connect(subject.place.unreachable())
        found = _errors(subject, lambda: subject.keep(broker.sender()), Message(value=b"a"), seconds=subject.brief)
        _say(NO_ANSWER if subject.capabilities.networked else NO_FILE, found)

    @broker_has("send")
    def test_a_closed_sender_says_so(self, subject: Subject) -> None:
        sender = subject.sender()
        sender.close()
        _say({Code.CLOSED}, _errors(subject, lambda: sender, Message(value=b"late")))

    @broker_has("send", "order", "keys")
    def test_what_is_kept_back_is_not_sent(self, subject: Subject) -> None:
        """This applies if the sender itself holds rows back. `Ordering` states for which rows it must."""
        rows = [replace(subject.poison(), key=b"k"), Message(value=b"k1", key=b"k")]
        sender = subject.sender()
        batch = subject.batch(rows, isolate=True, ordered=True)
        settled = subject.settle(sender, batch)[batch.number]
        _say({Code.NOT_SENT}, [each.error for each in settled.failures if isinstance(each.error, NotSent)], least=0)

    @broker_has("send")
    def test_a_refused_row_has_a_code_and_a_native_code_that_is_a_word(self, subject: Subject) -> None:
        errors = _errors(subject, subject.sender, subject.poison())
        assert errors
        for error in errors:
            assert error.code is not Code.UNKNOWN, f"{error!r} has no code"
            native = error.native_code
            assert native != error.code, f"{native!r} says the same twice"
            if native is not None:
                assert 0 < len(native) <= WORD, f"{native!r} is no word"
                assert native.isprintable(), f"{native!r} is no word"


def _nowhere(subject: Subject) -> str:
    nowhere = subject.place.impossible_destination()
    if nowhere is None:
        raise NotApplicable("any destination can be")
    return nowhere


def _errors(
    subject: Subject, make: Callable[[], Sender], message: Message, *, seconds: float | None = None
) -> list[BrokerError]:
    """Return the errors for a message that cannot be sent, whether `send` raises or the row is reported."""
    batch, deadline = subject.batch([message], isolate=True), subject.deadline(seconds)
    try:
        settled = subject.settle(make(), batch, deadline=deadline)[batch.number]
    except BrokerError as error:
        return [error]
    return [each for each in (settled.error, *(each.error for each in settled.failures)) if each is not None]


def _say(wanted: Collection[Code], errors: Iterable[BrokerError], *, least: int = 1) -> None:
    found = list(errors)
    assert len(found) >= least, "it was sent"
    for error in found:
        assert error.code in wanted, f"{error!r} has the code {error.code}, not {' or '.join(sorted(wanted))}"
