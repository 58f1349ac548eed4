"""Every error of SQS and of botocore is one of redelivery's classes."""

import re

import botocore.exceptions
import botocore.session
import pytest
from botocore.exceptions import BotoCoreError, ClientError

from redelivery.errors import Ambiguous, BrokerError, Fatal, Permanent, Retriable, Throttled, Unattributed
from redelivery.kit.errors import Code
from redelivery_sqs.errors import TABLE, entry_error

#: What every AWS service may answer (its "Common Errors" page), and what a throttled one does.
COMMON = [
    "AccessDeniedException",
    "ExpiredTokenException",
    "IncompleteSignature",
    "InternalFailure",
    "NotAuthorized",
    "OptInRequired",
    "RequestExpired",
    "ServiceUnavailable",
    "ThrottlingException",
    "UnrecognizedClientException",
    "ValidationError",
]


def answer(
    code: str, status: int = 400, operation: str = "SendMessageBatch", *, text: str = "m", **headers: str
) -> ClientError:
    metadata = {"HTTPStatusCode": status, "HTTPHeaders": headers}
    return ClientError({"Error": {"Code": code, "Message": text}, "ResponseMetadata": metadata}, operation)


def descendants(kind: type[Exception]) -> set[type[Exception]]:
    return {kind}.union(*(descendants(each) for each in kind.__subclasses__()))


def test_every_code_of_the_services_model_is_mapped() -> None:
    shapes = botocore.session.get_session().get_service_model("sqs").error_shapes
    assert shapes
    assert {shape.name for shape in shapes} - TABLE.by_code.keys() == set()
    assert set(COMMON) - TABLE.by_code.keys() == set()


def test_every_class_of_botocore_is_mapped_and_none_about_the_wire_by_accident() -> None:
    """A class that falls to the base is one of configuration: it must not be about HTTP."""
    for kind in descendants(BotoCoreError):
        base = next(each for each in kind.__mro__ if each in TABLE.by_class)
        if base is BotoCoreError:
            assert not issubclass(kind, botocore.exceptions.HTTPClientError | ConnectionError), kind
            assert "Connect" not in kind.__name__, kind
            assert "Timeout" not in kind.__name__, kind


def test_a_botocore_error_of_the_wire_is_ambiguous_once_something_was_sent() -> None:
    url = {"endpoint_url": "http://h"}
    assert type(TABLE.error(botocore.exceptions.EndpointConnectionError(**url), "x")) is Retriable
    assert type(TABLE.error(botocore.exceptions.ConnectTimeoutError(**url), "x")) is Retriable
    assert type(TABLE.error(botocore.exceptions.ReadTimeoutError(**url), "x")) is Ambiguous
    assert type(TABLE.error(botocore.exceptions.ConnectionClosedError(**url), "x")) is Ambiguous
    assert type(TABLE.error(botocore.exceptions.SSLError(**url, error="CERTIFICATE_VERIFY_FAILED"), "x")) is Fatal
    assert type(TABLE.error(botocore.exceptions.SSLError(**url, error="EOF"), "x")) is Ambiguous


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("RequestThrottled", 403, Throttled),
        ("ThrottlingException", 400, Throttled),
        ("AWS.SimpleQueueService.NonExistentQueue", 400, Fatal),
        ("com.amazonaws.sqs#QueueDoesNotExist", 400, Fatal),
        ("AccessDenied", 403, Fatal),
        ("ExpiredToken", 403, Fatal),
        ("InternalFailure", 500, Ambiguous),
        ("ServiceUnavailable", 503, Retriable),
        ("AWS.SimpleQueueService.BatchRequestTooLong", 400, Unattributed),
        ("InvalidMessageContents", 400, Unattributed),
        ("ReceiptHandleIsInvalid", 400, Permanent),
        ("SomethingNew", 400, Fatal),
        ("SomethingNew", 413, Unattributed),
        ("SomethingNew", 429, Throttled),
        ("", 502, Ambiguous),
        ("408", 408, Ambiguous),
        ("421", 421, Retriable),
        ("425", 425, Retriable),
    ],
)
def test_an_answer_to_a_whole_request_is_sorted(code: str, status: int, kind: type[BrokerError]) -> None:
    found = TABLE.error(answer(code, status), "sending", rows=2)
    assert type(found) is kind
    assert "sending" in str(found)


def test_an_answer_that_was_cut_off_after_its_status_is_no_refusal_by_sqs() -> None:
    """SQS always says why. An empty answer has lost its body on the way, and the same request may succeed."""
    assert type(TABLE.error(answer("400", 400, text=""), "x")) is Ambiguous
    assert type(TABLE.error(answer("404", 404, text="<html>no such page</html>"), "x")) is Fatal
    assert type(TABLE.error(answer("403", 403, text=""), "x")) is Fatal


def test_only_a_send_can_be_unattributed() -> None:
    assert type(TABLE.error(answer("InvalidAttributeValue", operation="CreateQueue"), "making")) is Fatal


def test_a_role_that_is_denied_is_no_queues_policy() -> None:
    """Nor is it about the queue that a row names."""
    found = TABLE.error(answer("AccessDenied", 403, "AssumeRole"), "assuming role 'arn'", own_target=False)
    assert isinstance(found, Fatal)
    assert re.search("assuming role 'arn'.*sts:AssumeRole.*the role's trust policy", str(found))


def test_a_throttled_request_says_how_long_to_wait() -> None:
    found = TABLE.error(answer("Throttling", 400, **{"retry-after": "3"}), "x")
    assert isinstance(found, Throttled)
    assert found.retry_after == 3.0
    again = TABLE.error(answer("Throttling", 400, **{"retry-after": "soon"}), "x")
    assert isinstance(again, Throttled)
    assert again.retry_after == 0.0


@pytest.mark.parametrize(
    ("code", "sender_fault", "kind"),
    [
        ("InvalidMessageContents", True, Permanent),
        ("InvalidAttributeValue", True, Permanent),
        ("SomethingNew", True, Permanent),
        ("SomethingNew", False, Retriable),
        ("InternalError", False, Retriable),
        ("InternalError", True, Ambiguous),
        ("RequestThrottled", False, Throttled),
        ("KmsAccessDenied", True, Fatal),
        ("AccessDenied", True, Fatal),
    ],
)
def test_an_entry_is_sorted_by_its_code_and_whose_fault_it_is(
    code: str, sender_fault: bool, kind: type[BrokerError]
) -> None:
    found = entry_error({"Id": "0", "Code": code, "SenderFault": sender_fault, "Message": "m"}, "x")
    assert type(found) is kind


@pytest.mark.parametrize(
    ("code", "kind"), [("QueueDoesNotExist", Permanent), ("AccessDenied", Permanent), ("ExpiredToken", Fatal)]
)
def test_only_a_missing_or_forbidden_queue_concerns_the_row_that_names_it_alone(
    code: str, kind: type[BrokerError]
) -> None:
    assert type(TABLE.error(answer(code), "x", own_target=False)) is kind
    assert type(TABLE.error(answer(code), "x")) is Fatal


@pytest.mark.parametrize(
    ("code", "text", "lost"),
    [
        ("MessageNotInflight", "not in flight", True),
        (
            "InvalidParameterValue",
            "Value x for parameter ReceiptHandle is invalid: The receipt handle has expired",
            True,
        ),
        ("InvalidParameterValue", "Total VisibilityTimeout for the message is beyond the limit", False),
    ],
)
def test_an_invalid_receipt_handle_is_known_by_code_and_text(code: str, text: str, lost: bool) -> None:
    for by_sender in (True, False):
        found = entry_error({"Id": "0", "Code": code, "SenderFault": by_sender, "Message": text}, "x")
        assert (found.code is Code.LEASE_LOST) is lost


def test_a_secret_in_an_errors_text_is_redacted() -> None:
    error = ClientError({"Error": {"Code": "X", "Message": "secret_access_key=hidden"}}, "SendMessage")
    assert "hidden" not in str(TABLE.error(error, "x"))
