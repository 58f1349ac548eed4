"""Every error of SQS and botocore as one of redelivery's classes: the only file that knows their codes.

This file must not call SQS nor decide what follows from an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from botocore import exceptions as boto
from botocore import parsers

from redelivery.errors import Ambiguous, BrokerError, Fatal, Permanent, Retriable, Throttled, Unattributed
from redelivery.kit.address import redact

_Rule = tuple[type[BrokerError], str]

_SLOW: _Rule = (Throttled, "SQS asks for fewer requests; nothing was done")
_LATER: _Rule = (Retriable, "nothing was done")
_UNKNOWN: _Rule = (Ambiguous, "it may have been done or not")
_NO_QUEUE: _Rule = (Fatal, "there is no such queue in this account and region: provision it, or correct URL and region")
_DENIED: _Rule = (Fatal, "allow it in a policy of this principal or of the queue")
_ROLE: Final = "allow it in a policy of this principal, and in the trust policy of the role"
_CREDENTIALS: _Rule = (Fatal, "these credentials are not taken: correct or renew them")
_CONFIGURED: _Rule = (Fatal, "correct the settings, or the AWS configuration of this machine")
_KEY: _Rule = (Fatal, "the queue's KMS key cannot be used: allow kms:GenerateDataKey and kms:Decrypt on it, enable it")
_OURS: _Rule = (Fatal, "this is an error of redelivery-sqs: please report it")
_ROW: _Rule = (Permanent, "SQS does not take this message")
_BATCH: _Rule = (Unattributed, "SQS refused the whole request; nothing was stored")
_REFUSED: _Rule = (Fatal, "SQS refuses the request")
_HANDLE: _Rule = (Permanent, "the receipt handle is none, or has run out")

#: By the code in SQS's answer, without the prefix of the older protocol. A test walks what botocore knows of.
BY_CODE: Final[Mapping[str, _Rule]] = {
    # of the service's model
    "BatchEntryIdsNotDistinct": _OURS,
    "BatchRequestTooLong": _BATCH,
    "EmptyBatchRequest": _OURS,
    "InvalidAddress": _NO_QUEUE,
    "InvalidAttributeName": _OURS,
    "InvalidAttributeValue": _BATCH,
    "InvalidBatchEntryId": _OURS,
    "InvalidIdFormat": _HANDLE,
    "InvalidMessageContents": _BATCH,
    "InvalidSecurity": (Fatal, "SQS takes no plain HTTP here: use https in the endpoint"),
    "KmsAccessDenied": _KEY,
    "KmsDisabled": _KEY,
    "KmsInvalidKeyUsage": _KEY,
    "KmsInvalidState": _KEY,
    "KmsNotFound": _KEY,
    "KmsOptInRequired": _KEY,
    "KmsThrottled": _SLOW,
    "MessageNotInflight": _HANDLE,
    "OverLimit": _SLOW,
    "PurgeQueueInProgress": (Retriable, "a queue is purged once a minute at most"),
    "QueueDeletedRecently": (Retriable, "a queue of this name was deleted less than a minute ago"),
    "QueueDoesNotExist": _NO_QUEUE,
    "QueueNameExists": (Fatal, "a queue of this name exists with other attributes"),
    "ReceiptHandleIsInvalid": _HANDLE,
    "RequestThrottled": _SLOW,
    "ResourceNotFoundException": _NO_QUEUE,
    "TooManyEntriesInBatchRequest": _OURS,
    "UnsupportedOperation": (Fatal, "SQS has no such operation for this queue"),
    # the older protocol's names for the same, as SQS still gives them
    "NonExistentQueue": _NO_QUEUE,
    # of every AWS service
    "AccessDenied": _DENIED,
    "AccessDeniedException": _DENIED,
    "AuthFailure": _CREDENTIALS,
    "ExpiredToken": _CREDENTIALS,
    "ExpiredTokenException": _CREDENTIALS,
    "IncompleteSignature": _CREDENTIALS,
    "InternalError": _UNKNOWN,
    "InternalFailure": _UNKNOWN,
    "InternalServerError": _UNKNOWN,
    "InvalidAccessKeyId": _CREDENTIALS,
    "InvalidAction": (Fatal, "the server has no such operation"),
    "InvalidClientTokenId": _CREDENTIALS,
    "InvalidParameterCombination": _BATCH,
    "InvalidParameterValue": _BATCH,
    "InvalidQueryParameter": _OURS,
    "MalformedQueryString": _OURS,
    "MissingAction": _OURS,
    "MissingAuthenticationToken": _CREDENTIALS,
    "MissingParameter": _BATCH,
    "NotAuthorized": _DENIED,
    "OptInRequired": _CREDENTIALS,
    "PriorRequestNotComplete": _SLOW,
    "RequestExpired": (Fatal, "this machine's clock is wrong, or the request took too long"),
    "RequestLimitExceeded": _SLOW,
    "RequestTimeTooSkewed": (Fatal, "this machine's clock is wrong"),
    "RequestTimeout": _UNKNOWN,
    "ServiceUnavailable": _LATER,
    "SignatureDoesNotMatch": _CREDENTIALS,
    "SlowDown": _SLOW,
    "Throttling": _SLOW,
    "ThrottlingException": _SLOW,
    "ThrottledException": _SLOW,
    "RequestThrottledException": _SLOW,
    "TooManyRequestsException": _SLOW,
    "UnrecognizedClientException": _CREDENTIALS,
    "ValidationError": _BATCH,
    "ValidationException": _BATCH,
}


#: By class of botocore's own errors: the nearest base counts. What is not here is an error of configuration.
BY_CLASS: Final[Mapping[type[Exception], _Rule]] = {
    boto.NoCredentialsError: (
        Fatal,
        "there are no credentials; set sqs.access_key_id and sqs.secret_access_key, a profile, or this machine's role",
    ),
    boto.NoRegionError: (Fatal, "no region: set sqs.region, or name the queue by its URL or ARN"),
    boto.CredentialRetrievalError: (Retriable, "the credentials could not be fetched; nothing was done"),
    boto.MetadataRetrievalError: (Retriable, "the credentials could not be fetched; nothing was done"),
    # before anything was sent
    boto.EndpointConnectionError: (Retriable, "nothing answers there; nothing was done"),
    boto.ConnectTimeoutError: (Retriable, "no connection in time; nothing was done"),
    boto.ProxyConnectionError: (Retriable, "the proxy does not answer; nothing was done"),
    # after something was sent, or nobody knows
    boto.ConnectionError: _UNKNOWN,
    boto.ConnectionClosedError: _UNKNOWN,
    boto.ReadTimeoutError: _UNKNOWN,
    boto.HTTPClientError: _UNKNOWN,
    boto.SSLError: _UNKNOWN,
    boto.ResponseStreamingError: _UNKNOWN,
    boto.IncompleteReadError: _UNKNOWN,
    boto.ChecksumError: _UNKNOWN,
    boto.FlexibleChecksumError: _UNKNOWN,
    parsers.ResponseParserError: _UNKNOWN,
    boto.CapacityNotAvailableError: _SLOW,
    boto.ParamValidationError: _ROW,
    boto.BotoCoreError: _CONFIGURED,
}

#: Whatever a call may raise. The second is no BotoCoreError.
ERRORS: Final = (boto.BotoCoreError, boto.ClientError, parsers.ResponseParserError)

#: The permission that an operation needs, where it is not called the same.
_PERMISSIONS: Final = {
    "SendMessageBatch": "SendMessage",
    "DeleteMessageBatch": "DeleteMessage",
    "ChangeMessageVisibilityBatch": "ChangeMessageVisibility",
}


def classify(error: Exception, doing: str) -> BrokerError:
    """The error of a whole request as redelivery's, its text saying what to do; chain it from the original."""
    if isinstance(error, boto.ClientError):
        return _of_client_error(error, doing)
    base = next((each for each in type(error).__mro__ if each in BY_CLASS), boto.BotoCoreError)
    kind, advice = BY_CLASS[base]
    if isinstance(error, boto.SSLError) and "CERTIFICATE_VERIFY_FAILED" in str(error):
        kind, advice = Fatal, "the server's certificate is not trusted: set sqs.ca_bundle, or correct the endpoint"
    name = type(error).__name__
    return kind(f"sqs: {doing}: {redact(str(error))} ({name}); {advice}", native_code=name)


def classify_entry(failed: Mapping[str, Any], doing: str) -> BrokerError:
    """The error of one entry of a batch (an element of `Failed`): its own, or one that concerns all."""
    name = plain(str(failed.get("Code", "")))
    kind, advice = BY_CODE.get(name, _ROW if failed.get("SenderFault") else _UNKNOWN)
    if kind is Unattributed or (kind is Fatal and advice is _OURS[1]):
        kind, advice = _ROW
    if kind is Permanent and not failed.get("SenderFault", True):
        kind, advice = _LATER  # SQS takes the blame
    if kind is Ambiguous and not failed.get("SenderFault"):
        kind, advice = _LATER  # an entry in `Failed` was not stored: SQS answered, and says so
    return kind(f"sqs: {doing}: {redact(str(failed.get('Message') or name))} ({name}); {advice}", native_code=name)


def is_target(error: BrokerError) -> bool:
    """Whether it is about the queue that was named: missing, or not ours to use."""
    return isinstance(error, Fatal) and any(
        BY_CODE.get(error.native_code or "") is rule for rule in (_NO_QUEUE, _DENIED)
    )


def is_denied(error: BrokerError) -> bool:
    """Whether a policy does not allow what was asked for."""
    return isinstance(error, Fatal) and (BY_CODE.get(error.native_code or "") is _DENIED or error.native_code == "403")


def plain(code: str) -> str:
    """A code as the service's model names it: without the older protocol's prefix."""
    return code.rpartition("#")[2].rpartition(".")[2]


@contextmanager
def classified(doing: str) -> Iterator[None]:
    """Turn whatever botocore raises inside into redelivery's error, chained."""
    try:
        yield
    except ERRORS as error:
        raise classify(error, doing) from error


def _of_client_error(error: boto.ClientError, doing: str) -> BrokerError:
    answer = error.response.get("Error", {})
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode") or 0)
    name = plain(str(answer.get("Code", "")))
    kind, advice = BY_CODE.get(name) or _by_status(status)
    operation = error.operation_name
    text = f"sqs: {doing}: {redact(str(answer.get('Message') or name))} ({name}); "
    if operation.startswith("AssumeRole") and kind is Fatal and advice == _DENIED[1]:
        # With a code of its own: it is about no queue.
        return Fatal(f"{text}sts:{operation} is denied: {_ROLE}", native_code=f"sts:{name}")
    if kind is Unattributed and not operation.startswith("SendMessage"):
        kind, advice = _REFUSED
    if kind is Fatal and advice == _DENIED[1]:
        text += f"sqs:{_PERMISSIONS.get(operation, operation)} is denied: "
    if kind is Throttled:
        return Throttled(text + advice, native_code=name, retry_after=_retry_after(error.response))
    return kind(text + advice, native_code=name)


def _by_status(status: int) -> _Rule:
    """By the HTTP status, where the code is one that nobody told us of."""
    rules = {401: _DENIED, 403: _DENIED, 408: _UNKNOWN, 413: _BATCH, 421: _LATER, 425: _LATER, 429: _SLOW, 503: _SLOW}
    return rules.get(status) or (_REFUSED if status // 100 == 4 else _UNKNOWN)  # noqa: PLR2004 - "4xx"


def _retry_after(response: Mapping[str, Any]) -> float:
    headers = response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    try:
        return max(0.0, float(headers.get("retry-after", 0)))
    except ValueError:
        return 0.0
