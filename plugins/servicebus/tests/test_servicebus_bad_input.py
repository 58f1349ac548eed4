"""What users get wrong: a clear error each, of the right class, without a secret, told in time."""

import time
from datetime import timedelta
from typing import Any

import pytest

from redelivery.contract.broker import Accept, Retry
from redelivery.contract.message import Batch, Message
from redelivery.errors import BrokerError, Fatal, LeaseLost, Permanent, RedeliveryError, Retriable
from redelivery_conformance.statements import Statements
from redelivery_conformance.subject import Subject
from redelivery_conformance.taking import Taker
from redelivery_servicebus.testing import CONNECTION_STRING, CONNECTION_VERIFY
from servicebus_standin import StandIn
from servicebus_standin.codec import VALUE, section, write

SECRET = "d3Jvbmcta2V5LW9mLW91cnM"  # noqa: S105 - what must not show


def namespace(subject: Subject) -> StandIn:
    runtime: Any = subject.runtime
    return runtime.namespace  # type: ignore[no-any-return]


def queue(subject: Subject) -> str:
    place: Any = subject.place
    return str(place.queue)


def failing(subject: Subject, url: str | None = None, *, whole: bool = False, **options: str) -> BrokerError:
    """Return the error of a send; with `whole`, no other options are given."""
    given = {f"servicebus.{name}": value for name, value in options.items()}
    if whole:
        harness = subject.harness
        broker = harness.connect(url or subject.place.url, given)
    else:
        broker = subject.connect(url, options=given)
    with broker, broker.sender() as sender:
        began = time.monotonic()
        try:
            sender.send(Batch.of([Message(value=b"v")]), deadline=began + 8.0)
        except BrokerError as error:
            found = error
        else:
            (settled,) = sender.collect(0.0)
            (failure,) = settled.failures
            found = failure.error
        assert time.monotonic() - began < 10.0
    return found


class TestBadInput(Statements):
    broker = "servicebus"

    def test_a_wrong_key_is_fatal_and_not_shown(self, subject: Subject) -> None:
        wrong = namespace(subject).connection("RootManageSharedAccessKey", secret=SECRET)
        found = failing(subject, connection_string=wrong)
        assert type(found) is Fatal
        assert "credentials" in str(found)
        cause: BaseException | None = found
        while cause is not None:
            assert SECRET not in f"{cause} {cause!r}"
            cause = cause.__cause__ or cause.__context__

    def test_an_expired_signature_is_fatal(self, subject: Subject) -> None:
        token = namespace(subject).token(seconds=-60)
        text = f"Endpoint=sb://{namespace(subject).namespace};SharedAccessSignature={token};UseDevelopmentEmulator=true"
        found = failing(subject, connection_string=text)
        assert type(found) is Fatal
        assert token not in str(found)

    def test_a_good_signature_is_enough(self, subject: Subject) -> None:
        token = namespace(subject).token(seconds=600)
        text = f"Endpoint=sb://{namespace(subject).namespace};SharedAccessSignature={token};UseDevelopmentEmulator=true"
        subject.deliver(Message(value=b"v"), options={CONNECTION_STRING: text})
        assert list(subject.values()) == [b"v"]

    def test_without_credentials_the_options_are_named(self, subject: Subject) -> None:
        found = failing(subject, "servicebus://orders.servicebus.windows.net/q", whole=True)
        assert type(found) is Fatal
        assert "servicebus.connection_string" in str(found)

    @pytest.mark.parametrize(("claims", "needed"), [(("Listen",), "Send"), (("Send",), "Listen")])
    def test_a_missing_claim_is_named(self, subject: Subject, claims: tuple[Any, ...], needed: str) -> None:
        text = namespace(subject).add_key("narrow", *claims)
        if needed == "Send":
            found: RedeliveryError = failing(subject, connection_string=text)
        else:
            with pytest.raises(BrokerError) as caught:
                subject.connect(options={CONNECTION_STRING: text}).receiver()
            found = caught.value
        assert type(found) is Fatal
        assert needed in str(found)

    def test_a_queue_that_is_not_there_or_is_disabled_is_fatal(self, subject: Subject) -> None:
        missing = failing(subject, subject.place.url + "-nobody")
        assert type(missing) is Fatal
        assert "provision it" in str(missing)
        namespace(subject).alter_queue(queue(subject), status="Disabled")
        disabled = failing(subject)
        assert type(disabled) is Fatal
        assert "disabled" in str(disabled)

    def test_a_queue_with_sessions_says_so_to_a_row_that_names_it(self, subject: Subject) -> None:
        name = f"{queue(subject)}-sessions"
        namespace(subject).create_queue(name, requires_session=True)
        found = failing(subject, subject.broker.sibling(name))
        assert isinstance(found, Fatal | Permanent)
        assert "session" in str(found)
        namespace(subject).delete_queue(name)

    def test_a_host_that_is_none_is_worth_a_retry(self, subject: Subject) -> None:
        assert type(failing(subject, "servicebus://nobody.invalid:1/q")) is Retriable
        assert type(failing(subject, subject.place.unreachable())) is Retriable

    def test_a_lost_lock_is_told_and_changes_nothing(self, subject: Subject) -> None:
        subject.deliver(Message(value=b"v"))
        taker = Taker(subject)
        received = taker.one()
        taker.lapse(received)
        received.lease.expires = time.monotonic() + 60  # so that Service Bus itself is asked
        (answer,) = taker.receiver.settle([(received, Accept())])
        assert isinstance(answer, LeaseLost)
        again = taker.one()
        taker.settle(Accept(), again)

    def test_a_message_over_the_limit_is_permanent(self, subject: Subject) -> None:
        with subject.connect().sender() as sender:
            sender.send(Batch.of([Message(value=bytes(262_144))]), deadline=time.monotonic() + 8.0)
            (settled,) = sender.collect(0.0)
        assert [type(each.error) for each in settled.failures] == [Permanent]
        assert "max_message_bytes" in str(settled.failures[0].error)

    def test_what_cannot_be_copied_is_told_and_its_message_kept(self, subject: Subject) -> None:
        namespace(subject).put(queue(subject), section(VALUE, write(7)))  # the SDK writes no long outside a list
        taker = Taker(subject)
        received = taker.one()
        (answer,) = taker.answers((received, Retry(timedelta(seconds=1))))
        assert isinstance(answer, Permanent)
        assert "cannot be copied" in str(answer)
        taker.settle(Retry(), received)
        taker.settle(Accept(), taker.one())

    def test_a_certificate_that_is_not_trusted_is_told(self, subject: Subject) -> None:
        options = dict(subject.place.options)
        del options[CONNECTION_VERIFY]
        told = pytest.raises(BrokerError, match=r"(?i)certificate")
        with subject.harness.connect(subject.place.url, options) as broker, broker.admin() as admin, told:
            admin.depth()
