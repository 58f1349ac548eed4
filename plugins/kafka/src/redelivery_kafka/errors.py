"""Every error of confluent-kafka as one of redelivery's classes: the only file that knows Kafka's codes.

A code is a broker's answer (no underscore before its name) or the client's own (`_MSG_TIMED_OUT`). This file must not
call a client nor decide what follows from an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from confluent_kafka import KafkaError, KafkaException

from redelivery.base.urls import redact
from redelivery.errors import Ambiguous, BrokerError, Fatal, Permanent, Retriable, Throttled, Unattributed

_Rule = tuple[type[BrokerError], str]


def _all(kind: type[BrokerError], advice: str, names: str) -> dict[str, _Rule]:
    """The same rule for each of these names."""
    return dict.fromkeys(names.split(), (kind, advice))


#: By the name of the code. One that is missing here is one that Kafka grew later: a test says so.
BY_NAME: Final[Mapping[str, _Rule]] = {
    # --- nothing happened ---
    **_all(
        Retriable,
        "the partition's leader or the coordinator is changing; nothing was stored",
        "LEADER_NOT_AVAILABLE NOT_LEADER_FOR_PARTITION REPLICA_NOT_AVAILABLE BROKER_NOT_AVAILABLE FENCED_LEADER_EPOCH "
        "UNKNOWN_LEADER_EPOCH NOT_CONTROLLER COORDINATOR_LOAD_IN_PROGRESS COORDINATOR_NOT_AVAILABLE NOT_COORDINATOR "
        "PREFERRED_LEADER_NOT_AVAILABLE ELIGIBLE_LEADERS_NOT_AVAILABLE LISTENER_NOT_FOUND OFFSET_NOT_AVAILABLE "
        "REASSIGNMENT_IN_PROGRESS STALE_BROKER_EPOCH STALE_CTRL_EPOCH UNSTABLE_OFFSET_COMMIT INCONSISTENT_TOPIC_ID "
        "UNKNOWN_TOPIC_ID REBOOTSTRAP_REQUIRED _WAIT_COORD _WAIT_CACHE _NODE_UPDATE",
    ),
    **_all(
        Retriable,
        "too few replicas are in sync; nothing was stored; look into the cluster's health",
        "NOT_ENOUGH_REPLICAS _ISR_INSUFF",
    ),
    **_all(
        Retriable,
        "the broker's disk failed; nothing was stored; look into its log",
        "KAFKA_STORAGE_ERROR LOG_DIR_NOT_FOUND",
    ),
    **_all(
        Retriable,
        "no broker was reached, so nothing was sent; check the bootstrap servers, the network and the listeners that "
        "the brokers advertise",
        "_ALL_BROKERS_DOWN _RESOLVE",
    ),
    **_all(Retriable, "the client's queue is full; nothing was handed over", "_QUEUE_FULL"),
    **_all(Retriable, "it was taken out of the client's queue before it was sent", "_PURGE_QUEUE"),
    **_all(
        Retriable,
        "the consumer group is being shared out anew, or this member has left it; nothing was committed",
        "ILLEGAL_GENERATION UNKNOWN_MEMBER_ID REBALANCE_IN_PROGRESS MEMBER_ID_REQUIRED FENCED_MEMBER_EPOCH "
        "STALE_MEMBER_EPOCH UNRELEASED_INSTANCE_ID NON_EMPTY_GROUP GROUP_SUBSCRIBED_TO_TOPIC _ASSIGNMENT_LOST "
        "_ASSIGN_PARTITIONS _REVOKE_PARTITIONS _MAX_POLL_EXCEEDED _OUTDATED",
    ),
    **_all(
        Retriable,
        "nothing was changed; the same may be asked again",
        "FETCH_SESSION_ID_NOT_FOUND INVALID_FETCH_SESSION_EPOCH SHARE_SESSION_NOT_FOUND INVALID_SHARE_SESSION_EPOCH "
        "SHARE_SESSION_LIMIT_REACHED OPERATION_NOT_ATTEMPTED CONCURRENT_TRANSACTIONS _IN_PROGRESS _PREV_IN_PROGRESS "
        "_CONFLICT _RETRY _INTR _PARTIAL _UNKNOWN_BROKER _DESTROY_BROKER _CRIT_SYS_RESOURCE DELEGATION_TOKEN_EXPIRED",
    ),
    **_all(
        Retriable,
        "the consumer's place in the log is not there; it is found anew",
        "OFFSET_OUT_OF_RANGE _NO_OFFSET _AUTO_OFFSET_RESET _LOG_TRUNCATION _PARTITION_EOF",
    ),
    **_all(Throttled, "the broker asks for a pause; nothing was stored", "THROTTLING_QUOTA_EXCEEDED"),
    # --- it may have happened ---
    **_all(
        Ambiguous,
        "the connection broke or no answer came in time, so it may be stored or not",
        "REQUEST_TIMED_OUT NETWORK_EXCEPTION _TRANSPORT _TIMED_OUT _TIMED_OUT_QUEUE _MSG_TIMED_OUT _PURGE_INFLIGHT "
        "_BAD_MSG _UNDERFLOW",
    ),
    **_all(
        Ambiguous,
        "it was stored by too few replicas: if the leader fails now it is lost, if not it stays",
        "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
    ),
    **_all(Ambiguous, "the broker says no more; its log does", "UNKNOWN _FAIL"),
    **_all(
        Ambiguous,
        "the producer lost count of what the broker has; another one goes on",
        "OUT_OF_ORDER_SEQUENCE_NUMBER DUPLICATE_SEQUENCE_NUMBER UNKNOWN_PRODUCER_ID INVALID_PRODUCER_EPOCH "
        "PRODUCER_FENCED _FATAL _FENCED _INCONSISTENT _GAPLESS_GUARANTEE _DESTROY",
    ),
    # --- one record of a request spoils it ---
    **_all(
        Unattributed,
        "a record, or the request that holds it, is larger than the topic's max.message.bytes: make the record "
        "smaller, or raise that, the broker's message.max.bytes and kafka.message.max.bytes",
        "MSG_SIZE_TOO_LARGE RECORD_LIST_TOO_LARGE INVALID_MSG_SIZE",
    ),
    **_all(
        Unattributed,
        "the broker refuses a record (a compacted topic without a key, a timestamp out of its bounds, a schema)",
        "INVALID_RECORD INVALID_TIMESTAMP INVALID_MSG UNSUPPORTED_FOR_MESSAGE_FORMAT _INVALID_DIFFERENT_RECORD",
    ),
    # --- this record never ---
    **_all(Permanent, "the topic has no such partition; correct the column 'partition'", "_UNKNOWN_PARTITION"),
    **_all(Permanent, "no topic can have this name", "TOPIC_EXCEPTION"),
    **_all(
        Permanent,
        "the value cannot be written as the client wants it",
        "_KEY_SERIALIZATION _VALUE_SERIALIZATION _KEY_DESERIALIZATION _VALUE_DESERIALIZATION _INVALID_TYPE "
        "_BAD_COMPRESSION OFFSET_METADATA_TOO_LARGE INVALID_COMMIT_OFFSET_SIZE",
    ),
    # --- no record will ---
    **_all(
        Fatal,
        "there is no such topic, and the cluster makes none: provision it, or correct its name",
        "UNKNOWN_TOPIC_OR_PART _UNKNOWN_TOPIC",
    ),
    **_all(
        Fatal,
        "the broker refuses who we are: check kafka.security.protocol, kafka.sasl.* and kafka.ssl.*",
        "_AUTHENTICATION SASL_AUTHENTICATION_FAILED UNSUPPORTED_SASL_MECHANISM ILLEGAL_SASL_STATE _SSL "
        "UNACCEPTABLE_CREDENTIAL SECURITY_DISABLED PRINCIPAL_DESERIALIZATION_FAILURE INVALID_PRINCIPAL_TYPE "
        "DELEGATION_TOKEN_AUTH_DISABLED DELEGATION_TOKEN_NOT_FOUND DELEGATION_TOKEN_OWNER_MISMATCH "
        "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED",
    ),
    **_all(
        Fatal,
        "this user has no right to it: the README lists the ACLs of each operation",
        "TOPIC_AUTHORIZATION_FAILED GROUP_AUTHORIZATION_FAILED CLUSTER_AUTHORIZATION_FAILED "
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED DELEGATION_TOKEN_AUTHORIZATION_FAILED",
    ),
    **_all(
        Fatal,
        "the brokers do not know what the client asks for: check their version, or that this is Kafka",
        "UNSUPPORTED_VERSION UNSUPPORTED_COMPRESSION_TYPE UNSUPPORTED_ASSIGNOR UNSUPPORTED_ENDPOINT_TYPE "
        "MISMATCHED_ENDPOINT_TYPE _UNSUPPORTED_FEATURE _NOT_IMPLEMENTED _UNKNOWN_PROTOCOL",
    ),
    **_all(
        Fatal,
        "a setting is wrong, or not allowed here",
        "INVALID_REQUIRED_ACKS INVALID_GROUP_ID INVALID_SESSION_TIMEOUT INCONSISTENT_GROUP_PROTOCOL "
        "GROUP_MAX_SIZE_REACHED FENCED_INSTANCE_ID INVALID_TRANSACTION_TIMEOUT INVALID_REGULAR_EXPRESSION "
        "INVALID_CONFIG INVALID_PARTITIONS INVALID_REPLICATION_FACTOR INVALID_REPLICA_ASSIGNMENT POLICY_VIOLATION "
        "TOPIC_DELETION_DISABLED _INVALID_ARG _NOT_CONFIGURED _FS _READ_ONLY",
    ),
    **_all(
        Fatal,
        "it is there already, or not there",
        "TOPIC_ALREADY_EXISTS DUPLICATE_RESOURCE RESOURCE_NOT_FOUND GROUP_ID_NOT_FOUND ELECTION_NOT_NEEDED "
        "NO_REASSIGNMENT_IN_PROGRESS _UNKNOWN_GROUP _NOENT",
    ),
    **_all(
        Fatal,
        "this is an error of redelivery-kafka or of the client: please report it",
        "INVALID_REQUEST INVALID_TXN_STATE INVALID_PRODUCER_ID_MAPPING TRANSACTION_COORDINATOR_FENCED "
        "TRANSACTION_ABORTABLE INCONSISTENT_VOTER_SET INVALID_UPDATE_VERSION FEATURE_UPDATE_FAILED "
        "UNKNOWN_CONTROLLER_ID UNKNOWN_SUBSCRIPTION_ID TELEMETRY_TOO_LARGE INVALID_REGISTRATION INVALID_RECORD_STATE "
        "FENCED_STATE_EPOCH INVALID_VOTER_KEY DUPLICATE_VOTER VOTER_NOT_FOUND STREAMS_INVALID_TOPOLOGY "
        "STREAMS_INVALID_TOPOLOGY_EPOCH STREAMS_TOPOLOGY_FENCED _STATE _EXISTING_SUBSCRIPTION _APPLICATION _NOOP "
        "NO_ERROR",
    ),
}
_NEWER: Final[_Rule] = (Ambiguous, "this version of redelivery-kafka does not know the code, so it may have happened")

#: About the topic: fatal where it is the URL's own, a row's own fault where the row names it.
TARGET: Final = frozenset({"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "TOPIC_EXCEPTION", "TOPIC_AUTHORIZATION_FAILED"})
#: The client does not know the topic or the partition: nobody said which, or it has changed since the client looked.
DOUBT: Final = frozenset({"_UNKNOWN_PARTITION", "_UNKNOWN_TOPIC", "UNKNOWN_TOPIC_OR_PART"})
#: The producer that told of it can send nothing more.
LOST_COUNT: Final = frozenset({"_FATAL", "_FENCED", "_INCONSISTENT", "_GAPLESS_GUARANTEE", "PRODUCER_FENCED"})
#: An earlier record was refused, and nothing must overtake it.
GAP: Final = "_GAPLESS_GUARANTEE"
#: The connection is refused for a reason that another try does not mend.
REFUSED: Final = frozenset({"_AUTHENTICATION", "SASL_AUTHENTICATION_FAILED", "UNSUPPORTED_SASL_MECHANISM", "_SSL"})

#: An authentication that has not begun, in the words of the library that asks for tokens: nobody has refused it.
_NO_ENDPOINT: Final = re.compile(
    r"token: (Failed to connect|Could(n't| not) (connect|resolve)|(Resolving|Connection|Operation) timed out|"
    r"Connection was reset|Empty reply|Recv failure|Send failure)"
)
#: A partition that the client does not know, where no row names one.
_NO_LEADER: Final = "a partition has no leader now: a broker is down; nothing was changed"

#: What the client's Python part raises for a row that it cannot take.
ROW_ERRORS: Final = (TypeError, ValueError, OverflowError)
#: Whatever a call of the client may raise.
ERRORS: Final = (KafkaException, BufferError, RuntimeError, NotImplementedError, *ROW_ERRORS)

_PAUSE: Final = 1.0


def classify(error: Exception | KafkaError, doing: str, *, alone: bool = True, own: bool = True) -> BrokerError:
    """The error as redelivery's, its text saying what was being done and what to do.

    Args:
        error: what the client raised, or told a callback. The caller chains what was raised.
        doing: "storing in 'topic'".
        alone: the request held this record only, or none: what a record can cause is this one's fault.
        own: the topic is the URL's own, not a row's.
    """
    found = error.args[0] if isinstance(error, KafkaException) and error.args else error
    if not isinstance(found, KafkaError):
        return _of_python(error, doing)
    name = found.name()
    kind, advice = BY_NAME.get(name, _NEWER)
    if name in TARGET:
        kind = Fatal if own else Permanent
    elif name in REFUSED and not refused(found):
        kind, advice = Retriable, "check kafka.sasl.oauthbearer.token.endpoint.url and the network; nothing was sent"
    elif kind is Unattributed and alone:
        kind = Permanent
    text = f"kafka: {doing}: {redact(found.str())} ({name}); {advice}"
    return Throttled(text, native_code=name, retry_after=_PAUSE) if kind is Throttled else kind(text, native_code=name)


def classify_reading(error: Exception | KafkaError, doing: str) -> BrokerError:
    """The error of a call that changes nothing: what would be ambiguous of another may just be asked again."""
    found = classify(error, doing)
    if found.native_code == "_UNKNOWN_PARTITION":
        return found.reclassified(Retriable, f"kafka: {doing}: {_NO_LEADER}")
    return found.reclassified(Retriable) if isinstance(found, Ambiguous) else found


def doubted(error: Exception | KafkaError) -> KafkaError | None:
    """What the client said, where it does not know the topic or the partition; None: something else is wrong."""
    found = error.args[0] if isinstance(error, KafkaException) and error.args else error
    return found if isinstance(found, KafkaError) and found.name() in DOUBT else None


def changed(doing: str, partitions: int, code: str) -> Retriable:
    """The error of a row that named no partition, or one that is there, where the client knew another topic."""
    text = f"the topic was changed while it was written to: it has {partitions} partitions now; the row was not sent"
    return Retriable(f"kafka: {doing}: {text}", native_code=code)


def refused(error: KafkaError) -> bool:
    """Whether a connection was refused for a reason that another try does not mend."""
    return error.name() in REFUSED and _NO_ENDPOINT.search(str(error.str())) is None


@contextmanager
def classified(doing: str, *, reading: bool = False) -> Iterator[None]:
    """Turn whatever the client raises inside into redelivery's error, chained."""
    try:
        yield
    except ERRORS as error:
        raise (classify_reading if reading else classify)(error, doing) from error


def _of_python(error: Exception | KafkaError, doing: str) -> BrokerError:
    kind: type[BrokerError]
    name = type(error).__name__
    if isinstance(error, BufferError):
        kind, advice = BY_NAME["_QUEUE_FULL"]
        return kind(f"kafka: {doing}: {advice}", native_code="_QUEUE_FULL")
    if isinstance(error, ROW_ERRORS):
        kind, advice = Permanent, "the client cannot take a value of this type or size"
    else:
        kind, advice = Fatal, "this is an error of redelivery-kafka or of the client: please report it"
    return kind(f"kafka: {doing}: {redact(str(error))} ({name}); {advice}", native_code=name)
