"""Every error of SQS and botocore as one of redelivery's: the only module that knows their codes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from botocore import exceptions as boto
from botocore import parsers

from redelivery.errors import Ambiguous, BrokerError, Fatal, Permanent, Retriable, Throttled, Unattributed
from redelivery.kit.errors import BUG, ClientError, Code, ErrorTable, Rule

_SLOW: Final = Rule(Throttled, Code.THROTTLED, "SQS asks for fewer requests; nothing was done")
_LATER: Final = Rule(Retriable, Code.UNAVAILABLE, "nothing was done")
_INTERNAL: Final = Rule(Ambiguous, Code.UNAVAILABLE, "it may have been done or not")
_LOST: Final = Rule(Ambiguous, Code.CONNECTION_LOST, "it may have been done or not")
_LATE: Final = Rule(Ambiguous, Code.DEADLINE_EXCEEDED, "it may have been done or not")
_UNCONFIRMED: Final = Rule(Ambiguous, Code.UNCONFIRMED, "it may have been done or not")
_NO_QUEUE: Final = Rule(
    Fatal,
    Code.NO_SUCH_DESTINATION,
    "no such queue exists in this account and region: provision it, or correct URL and region",
    about_target=True,
)
_DENIED: Final = Rule(
    Fatal, Code.NOT_AUTHORIZED, "allow it in a policy of this principal or of the queue", about_target=True
)
_ROLE: Final = Rule(
    Fatal, Code.NOT_AUTHENTICATED, "allow sts:AssumeRole in a policy of this principal and in the role's trust policy"
)
_CREDENTIALS: Final = Rule(Fatal, Code.NOT_AUTHENTICATED, "AWS refuses these credentials: correct or renew them")
_CONFIGURED: Final = Rule(Fatal, Code.MISCONFIGURED, "correct the options, or the AWS configuration of this machine")
_CLOCK: Final = Rule(Fatal, Code.MISCONFIGURED, "correct this machine's clock")
_KEY: Final = Rule(
    Fatal, Code.NOT_AUTHORIZED, "allow kms:GenerateDataKey and kms:Decrypt on the queue's KMS key, and enable the key"
)
_MESSAGE: Final = Rule(Permanent, Code.INVALID_MESSAGE, "SQS does not accept this message")
_BATCH: Final = Rule(Unattributed, Code.REJECTED, "SQS refused the whole request; nothing was stored")
_INVALID_BATCH: Final = Rule(Unattributed, Code.INVALID_MESSAGE, "SQS refused the whole request; nothing was stored")
_TOO_LARGE: Final = Rule(Unattributed, Code.TOO_LARGE, "SQS refused the whole request; nothing was stored")
_REFUSED: Final = Rule(Fatal, Code.REJECTED, "SQS refuses the request")
_HANDLE: Final = Rule(Permanent, Code.LEASE_LOST, "the receipt handle is invalid, or has expired")
#: For a code that is not in this table: `entry_error` tells it from a known one.
_UNFORESEEN: Final = replace(_INTERNAL)
#: For the ValueError that botocore raises.
INVALID_ENDPOINT: Final = Rule(Fatal, Code.MISCONFIGURED, "correct the endpoint that the environment names")
_UNSUPPORTED: Final = Rule(Fatal, Code.UNSUPPORTED, "SQS does not have this operation for this queue")

#: By rule: the codes in SQS's answers, without the prefix of the older protocol. A test walks the service's model.
_CODES: Final[Mapping[Rule, str]] = {
    BUG: (
        "BatchEntryIdsNotDistinct EmptyBatchRequest InvalidAttributeName InvalidBatchEntryId InvalidQueryParameter "
        "MalformedQueryString MissingAction TooManyEntriesInBatchRequest"
    ),
    _BATCH: "InvalidAttributeValue",
    _CLOCK: "RequestExpired RequestTimeTooSkewed",
    _CREDENTIALS: (
        "AuthFailure ExpiredToken ExpiredTokenException IncompleteSignature InvalidAccessKeyId InvalidClientTokenId "
        "MissingAuthenticationToken OptInRequired SignatureDoesNotMatch UnrecognizedClientException"
    ),
    _DENIED: "AccessDenied AccessDeniedException NotAuthorized",
    _HANDLE: "InvalidIdFormat MessageNotInflight ReceiptHandleIsInvalid",
    _INTERNAL: "InternalError InternalFailure InternalServerError",
    _INVALID_BATCH: (
        "InvalidMessageContents InvalidParameterCombination InvalidParameterValue MissingParameter ValidationError "
        "ValidationException"
    ),
    _KEY: "KmsAccessDenied KmsDisabled KmsInvalidKeyUsage KmsInvalidState KmsNotFound KmsOptInRequired",
    _LATE: "RequestTimeout",
    _LATER: "QueueDeletedRecently ServiceUnavailable",
    _NO_QUEUE: "InvalidAddress NonExistentQueue QueueDoesNotExist ResourceNotFoundException",
    _ROLE: "sts:AccessDenied sts:AccessDeniedException sts:NotAuthorized",
    _SLOW: (
        "KmsThrottled OverLimit PriorRequestNotComplete RequestLimitExceeded RequestThrottled "
        "RequestThrottledException SlowDown ThrottledException Throttling ThrottlingException TooManyRequestsException"
    ),
    _TOO_LARGE: "BatchRequestTooLong",
    _UNSUPPORTED: "InvalidAction UnsupportedOperation",
    Rule(Fatal, Code.CONFLICT, "a queue of this name exists with other attributes"): "QueueNameExists",
    Rule(Fatal, Code.TLS_FAILED, "SQS does not accept plain HTTP: use https in the endpoint"): "InvalidSecurity",
    Rule(Retriable, Code.CONFLICT, "SQS purges a queue once per minute at most"): "PurgeQueueInProgress",
}
#: By HTTP status, for codes that are not in this table.
_STATUSES: Final[Mapping[int | str, Rule]] = {
    401: _DENIED,
    403: _DENIED,
    408: _LATE,
    413: _TOO_LARGE,
    421: _LATER,
    425: _LATER,
    429: _SLOW,
    503: _SLOW,
    "4xx": _REFUSED,
    "cut": _UNCONFIRMED,
}

#: By class of botocore's own errors; an error without a rule concerns the configuration.
_BY_CLASS: Final[Mapping[type[BaseException], Rule]] = {
    boto.NoCredentialsError: Rule(
        Fatal,
        Code.NOT_AUTHENTICATED,
        "set sqs.access_key_id and sqs.secret_access_key, a profile, or this machine's role",
    ),
    boto.NoRegionError: Rule(Fatal, Code.MISCONFIGURED, "set sqs.region, or give the queue's URL or ARN"),
    boto.CredentialRetrievalError: _LATER,
    boto.MetadataRetrievalError: _LATER,
    # before anything was sent
    boto.EndpointConnectionError: Rule(Retriable, Code.CONNECTION_LOST, "nothing was sent"),
    boto.ConnectTimeoutError: Rule(Retriable, Code.CONNECTION_LOST, "nothing was sent"),
    boto.ProxyConnectionError: Rule(Retriable, Code.CONNECTION_LOST, "the proxy does not answer; nothing was sent"),
    # after something was sent, or at an unknown time
    boto.ConnectionError: _LOST,
    boto.ConnectionClosedError: _LOST,
    boto.ReadTimeoutError: _LATE,
    boto.HTTPClientError: _LOST,
    boto.SSLError: _LOST,
    boto.ResponseStreamingError: _LOST,
    boto.IncompleteReadError: _LOST,
    boto.ChecksumError: _UNCONFIRMED,
    boto.FlexibleChecksumError: _UNCONFIRMED,
    parsers.ResponseParserError: _UNCONFIRMED,
    boto.CapacityNotAvailableError: _SLOW,
    boto.ParamValidationError: _MESSAGE,
    boto.BotoCoreError: _CONFIGURED,
    boto.ClientError: _INTERNAL,
}


def _describe(error: Any) -> ClientError:
    """Describe an error of botocore, or an element of `Failed` in a batch's answer."""
    if isinstance(error, Mapping):
        name = _plain(error.get("Code"))
        return ClientError(str(error.get("Message") or ""), codes=(name,), name=name)
    if not isinstance(error, boto.ClientError):
        return ClientError(str(error))
    answer = error.response.get("Error", {})
    metadata = error.response.get("ResponseMetadata", {})
    status = int(metadata.get("HTTPStatusCode") or 0)
    name = _plain(answer.get("Code"))
    # SQS says why it refuses. If an answer names nothing, its body was lost on the way.
    general = "cut" if name == str(status) and not answer.get("Message") else f"{status // 100}xx"
    service = "sts:" if error.operation_name.startswith("AssumeRole") else ""
    return ClientError(
        str(answer.get("Message") or ""),
        codes=(service + name, name, status, general),
        name=name,
        retry_after=_seconds(metadata.get("HTTPHeaders", {}).get("retry-after")),
    )


TABLE: Final = ErrorTable(
    "sqs",
    by_class=_BY_CLASS,
    by_code={**_STATUSES, **{code: rule for rule, codes in _CODES.items() for code in codes.split()}},
    by_text=[
        (None, "CERTIFICATE_VERIFY_FAILED", Rule(Fatal, Code.TLS_FAILED, "set sqs.ca_bundle, or correct the endpoint")),
        # FIFO queues answer "The receipt handle has expired" with the code of any bad parameter.
        ("InvalidParameterValue", "receipt handle", _HANDLE),
    ],
    otherwise=_UNFORESEEN,
    describe=_describe,
    catches=(boto.BotoCoreError, boto.ClientError, parsers.ResponseParserError),
)


def entry_error(failed: Mapping[str, Any], doing: str) -> BrokerError:
    """Return the error for one entry of a batch, an element of `Failed`: SQS did not carry out this entry."""
    by_sender = failed.get("SenderFault")
    rule = TABLE.rule(failed)
    if rule is BUG or (rule is TABLE.otherwise and by_sender):
        rule = _MESSAGE
    if issubclass(rule.kind, Ambiguous) and not by_sender:
        rule = _LATER
    if issubclass(rule.kind, Permanent | Unattributed) and by_sender is False and rule is not _HANDLE:
        rule = _LATER
    return TABLE.error(failed, doing, rule=rule, rows=1)


def _plain(code: object) -> str:
    """A code without the prefix of the older protocol, as the service's model names it."""
    return str(code or "").rpartition("#")[2].rpartition(".")[2]


def _seconds(text: str | None) -> float:
    try:
        return max(0.0, float(text or 0))
    except ValueError:
        return 0.0
