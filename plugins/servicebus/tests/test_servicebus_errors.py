"""Every error of the SDK, and of the HTTP client under its administration, is one of redelivery's classes and codes."""

import pickle

import azure.core.exceptions as core
import azure.servicebus.exceptions as bus
import pytest
from azure.servicebus._pyamqp.error import TokenAuthFailure, TokenExpired

from redelivery.codes import Code
from redelivery.errors import Ambiguous, BrokerError, Fatal, Permanent, Retriable, Throttled, Unattributed
from redelivery_servicebus.errors import MANAGE, SEND, TABLE, is_lost


def errors_of(module: object) -> set[type[BaseException]]:
    found = [getattr(module, name) for name in dir(module)]
    return {each for each in found if isinstance(each, type) and issubclass(each, Exception)}


def classified(error: BaseException, *, safe: bool = False, rows: int = 2, own_target: bool = True) -> BrokerError:
    return TABLE.error(error, "doing it", safe=safe, rows=rows, own_target=own_target, needs=SEND)


def conditioned(condition: str) -> bus.ServiceBusError:
    return bus.ServiceBusError("m", condition=condition)


@pytest.mark.parametrize("module", [bus, core])
def test_every_class_is_mapped_by_itself(module: object) -> None:
    """One that falls to a base would be called ambiguous by accident."""
    classes = {each for each in errors_of(module) if each.__module__ == module.__name__}  # type: ignore[attr-defined]
    assert classes
    assert classes - TABLE.by_class.keys() == set()


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (bus.MessageSizeExceededError(), Unattributed),
        (bus.ServiceBusAuthenticationError(), Fatal),
        (bus.ServiceBusAuthorizationError(), Fatal),
        (bus.MessagingEntityNotFoundError(), Fatal),
        (bus.MessagingEntityDisabledError(), Fatal),
        (bus.ServiceBusQuotaExceededError(), Retriable),
        (bus.ServiceBusServerBusyError(), Throttled),
        (bus.MessageLockLostError(), Permanent),
        (conditioned("com.microsoft:argument-error"), Unattributed),
        (conditioned("amqp:not-allowed"), Fatal),
        (bus.ServiceBusError("Handler failed: Value supplied for int invalid: 1099511627776."), Permanent),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), Permanent),
        (core.ServiceRequestError("m"), Retriable),
        (core.ClientAuthenticationError("m"), Fatal),
        (ImportError("websocket"), Fatal),
    ],
)
def test_what_service_bus_has_told_is_sorted_by_it(error: BaseException, kind: type[BrokerError]) -> None:
    found = classified(error)
    assert type(found) is kind
    assert "doing it" in str(found)
    assert type(pickle.loads(pickle.dumps(found))) is kind  # noqa: S301 - our own


@pytest.mark.parametrize(
    "error",
    [
        bus.ServiceBusConnectionError(),
        bus.ServiceBusCommunicationError(),
        bus.OperationTimeoutError(),
        conditioned("amqp:internal-error"),
        core.ServiceResponseError("m"),
        OSError("reset"),
        ValueError("something new"),
    ],
)
def test_a_broken_connection_is_ambiguous_once_something_was_asked(error: BaseException) -> None:
    assert type(classified(error)) is Ambiguous
    assert type(classified(error, safe=True)) is Retriable


@pytest.mark.parametrize(
    ("cause", "passes"),
    [
        (TokenExpired(condition=b"amqp:internal-error"), True),
        (TokenAuthFailure(503, "busy"), True),
        (TokenAuthFailure(408, "late"), True),
        (TokenAuthFailure(401, "wrong key"), False),
        (TokenAuthFailure(None, None), False),
        (None, False),
    ],
)
def test_only_a_token_that_was_refused_is_fatal(cause: Exception | None, passes: bool) -> None:
    error = bus.ServiceBusAuthenticationError(error=cause)
    assert type(classified(error)) is (Ambiguous if passes else Fatal)
    assert type(classified(error, safe=True)) is (Retriable if passes else Fatal)


@pytest.mark.parametrize(("status", "kind"), [(401, Fatal), (404, Fatal), (429, Throttled), (503, Throttled)])
def test_an_administration_answer_is_sorted_by_its_status(status: int, kind: type[BrokerError]) -> None:
    error = core.HttpResponseError("m")
    error.status_code = status
    assert type(classified(error)) is kind
    error.status_code = 500
    assert type(classified(error)) is Ambiguous


def test_a_denied_operation_names_the_claim_that_it_needs() -> None:
    assert "the claim Send" in str(classified(bus.ServiceBusAuthorizationError()))
    assert "the claim Manage" in str(TABLE.error(core.ClientAuthenticationError("m"), "x", needs=MANAGE))


def test_an_error_about_a_queue_that_a_row_names_is_that_rows_alone() -> None:
    for error in (bus.MessagingEntityNotFoundError(), bus.ServiceBusAuthorizationError()):
        assert type(classified(error)) is Fatal
        assert type(classified(error, own_target=False)) is Permanent
    assert type(classified(bus.ServiceBusAuthenticationError(), own_target=False)) is Fatal


def test_a_lost_lock_is_known_by_its_class_or_by_a_bare_status() -> None:
    for error in (bus.MessageLockLostError(), bus.ServiceBusError("m", status_code=410)):
        assert is_lost(error)
        assert is_lost(classified(error))
    assert not is_lost(bus.ServiceBusConnectionError())
    assert not is_lost(classified(bus.ServiceBusConnectionError()))


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (bus.MessageSizeExceededError(), Code.TOO_LARGE),
        (bus.MessagingEntityNotFoundError(), Code.NO_SUCH_DESTINATION),
        (bus.ServiceBusQuotaExceededError(), Code.FULL),
        (bus.OperationTimeoutError(), Code.DEADLINE_EXCEEDED),
        (bus.ServiceBusConnectionError(), Code.CONNECTION_LOST),
        (conditioned("amqp:internal-error"), Code.UNAVAILABLE),
        (conditioned("com.microsoft:argument-error"), Code.REJECTED),
        (core.ServiceRequestError("[SSL: CERTIFICATE_VERIFY_FAILED] self-signed"), Code.TLS_FAILED),
    ],
)
def test_an_error_has_a_code_and_the_clients_own_word(error: BaseException, code: Code) -> None:
    found = classified(error)
    assert found.code is code
    assert found.native_code in {type(error).__name__, getattr(error, "_condition", None)}


def test_no_rule_leaves_the_code_unknown() -> None:
    rules = [*TABLE.by_class.values(), *TABLE.by_code.values()]
    assert Code.UNKNOWN not in {rule.code for rule in rules}


def test_a_secret_in_an_errors_text_is_redacted() -> None:
    assert "hidden" not in str(classified(bus.ServiceBusError("SharedAccessKey=hidden;x")))
