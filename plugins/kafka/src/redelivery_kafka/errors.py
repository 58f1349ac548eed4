"""Every error of confluent-kafka as one of redelivery's.

A code is a broker's answer (no underscore before its name) or the client's own (`_MSG_TIMED_OUT`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from confluent_kafka import KafkaError, KafkaException

from redelivery.errors import Ambiguous, BrokerError, Fatal, Permanent, Retriable, Throttled, Unattributed
from redelivery.kit.errors import BUG, ClientError, Code, ErrorTable, Rule
from redelivery_kafka.client.internals import is_token_endpoint_unreached

#: Codes of the client, under names without its underscore.
PARTITION_EOF: Final = KafkaError._PARTITION_EOF  # noqa: SLF001 - its public name
ALL_BROKERS_DOWN: Final = KafkaError._ALL_BROKERS_DOWN  # noqa: SLF001 - its public name
UNKNOWN_PARTITION: Final = KafkaError._UNKNOWN_PARTITION  # noqa: SLF001 - its public name

#: Codes of a topic or partition that the client does not know: no broker has it, or it changed since the client looked.
UNKNOWN_TARGET: Final = frozenset({"_UNKNOWN_PARTITION", "_UNKNOWN_TOPIC", "UNKNOWN_TOPIC_OR_PART"})
#: A producer that reports one of these can send nothing more.
PRODUCER_LOST: Final = frozenset({"_FATAL", "_FENCED", "_INCONSISTENT", "_GAPLESS_GUARANTEE", "PRODUCER_FENCED"})
#: A gapless producer reports this for what is behind a refused record: nothing may overtake that.
GAP: Final = "_GAPLESS_GUARANTEE"

_UNAVAILABLE: Final = Code.UNAVAILABLE
#: In place of codes: a token endpoint that was not reached, and a code that Kafka got after this version of the plugin.
_TOKEN_ENDPOINT: Final = "token-endpoint"  # noqa: S105 - no token
_NEWER: Final = "newer"
_RETRY_AFTER: Final = 1.0

_QUEUE_FULL: Final = Rule(Retriable, Code.FULL, "the client's queue is full; nothing was handed over")
_NO_LEADER: Final = Rule(Retriable, _UNAVAILABLE, "a partition has no leader now: a broker is down; try again")
_ROW: Final = Rule(Permanent, Code.INVALID_MESSAGE, "the client cannot take a value of this type or size")

#: Rules, each with the codes that it is for.
_RULES: Final = {
    # --- nothing happened ---
    Rule(Retriable, _UNAVAILABLE, "the partition's leader or the coordinator is changing; nothing was stored"): """
        LEADER_NOT_AVAILABLE NOT_LEADER_FOR_PARTITION REPLICA_NOT_AVAILABLE BROKER_NOT_AVAILABLE
        FENCED_LEADER_EPOCH UNKNOWN_LEADER_EPOCH NOT_CONTROLLER COORDINATOR_LOAD_IN_PROGRESS
        COORDINATOR_NOT_AVAILABLE NOT_COORDINATOR PREFERRED_LEADER_NOT_AVAILABLE
        ELIGIBLE_LEADERS_NOT_AVAILABLE LISTENER_NOT_FOUND OFFSET_NOT_AVAILABLE REASSIGNMENT_IN_PROGRESS
        STALE_BROKER_EPOCH STALE_CTRL_EPOCH UNSTABLE_OFFSET_COMMIT INCONSISTENT_TOPIC_ID UNKNOWN_TOPIC_ID
        REBOOTSTRAP_REQUIRED _WAIT_COORD _WAIT_CACHE _NODE_UPDATE
    """,
    Rule(
        Retriable, _UNAVAILABLE, "too few replicas are in sync; nothing was stored; check the cluster's health"
    ): "NOT_ENOUGH_REPLICAS _ISR_INSUFF",
    Rule(
        Retriable, _UNAVAILABLE, "the broker's disk failed; nothing was stored; check the broker's log"
    ): "KAFKA_STORAGE_ERROR LOG_DIR_NOT_FOUND",
    Rule(
        Retriable,
        Code.CONNECTION_LOST,
        "no broker was reached, so nothing was sent; check the bootstrap servers, the network and the listeners "
        "that the brokers advertise",
    ): "_ALL_BROKERS_DOWN _RESOLVE",
    Rule(
        Retriable,
        Code.CONNECTION_LOST,
        "check kafka.sasl.oauthbearer.token.endpoint.url and the network; nothing was sent",
    ): _TOKEN_ENDPOINT,
    _QUEUE_FULL: "_QUEUE_FULL",
    Rule(Retriable, Code.NOT_SENT, "it was dropped from the client's queue before it was sent"): "_PURGE_QUEUE",
    Rule(
        Retriable,
        Code.LEASE_LOST,
        "the consumer group is rebalancing, or this member has left it; nothing was committed",
    ): """
        ILLEGAL_GENERATION UNKNOWN_MEMBER_ID REBALANCE_IN_PROGRESS MEMBER_ID_REQUIRED FENCED_MEMBER_EPOCH
        STALE_MEMBER_EPOCH UNRELEASED_INSTANCE_ID NON_EMPTY_GROUP GROUP_SUBSCRIBED_TO_TOPIC _ASSIGNMENT_LOST
        _ASSIGN_PARTITIONS _REVOKE_PARTITIONS _MAX_POLL_EXCEEDED _OUTDATED
    """,
    Rule(Retriable, _UNAVAILABLE, "nothing was changed; the same request can be made again"): """
        FETCH_SESSION_ID_NOT_FOUND INVALID_FETCH_SESSION_EPOCH SHARE_SESSION_NOT_FOUND
        INVALID_SHARE_SESSION_EPOCH SHARE_SESSION_LIMIT_REACHED OPERATION_NOT_ATTEMPTED
        CONCURRENT_TRANSACTIONS _IN_PROGRESS _PREV_IN_PROGRESS _CONFLICT _RETRY _INTR _PARTIAL _UNKNOWN_BROKER
        _DESTROY_BROKER _CRIT_SYS_RESOURCE DELEGATION_TOKEN_EXPIRED
    """,
    Rule(Retriable, Code.CONFLICT, "the consumer's offset is not in the log any more; it looks for the next one"): """
        OFFSET_OUT_OF_RANGE _NO_OFFSET _AUTO_OFFSET_RESET _LOG_TRUNCATION _PARTITION_EOF
    """,
    Rule(Throttled, Code.THROTTLED, "the broker asks for a pause; nothing was stored"): "THROTTLING_QUOTA_EXCEEDED",
    # --- it may have happened ---
    Rule(Ambiguous, Code.DEADLINE_EXCEEDED, "no answer came in time, so it may be stored or not"): """
        REQUEST_TIMED_OUT _TIMED_OUT _TIMED_OUT_QUEUE _MSG_TIMED_OUT
    """,
    Rule(
        Ambiguous, Code.CONNECTION_LOST, "the connection broke, so it may be stored or not"
    ): "NETWORK_EXCEPTION _TRANSPORT _BAD_MSG _UNDERFLOW",
    Rule(Ambiguous, Code.UNCONFIRMED, "it was sent and no answer came, so it may be stored or not"): "_PURGE_INFLIGHT",
    Rule(
        Ambiguous,
        Code.UNCONFIRMED,
        "it was stored by too few replicas: if the leader fails now it is lost, if not it stays",
    ): "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
    Rule(Ambiguous, _UNAVAILABLE, "the broker gives no reason; check its log"): "UNKNOWN _FAIL",
    Rule(Ambiguous, Code.UNCONFIRMED, "the producer lost count of what the broker has; another one goes on"): """
        OUT_OF_ORDER_SEQUENCE_NUMBER DUPLICATE_SEQUENCE_NUMBER UNKNOWN_PRODUCER_ID INVALID_PRODUCER_EPOCH
        PRODUCER_FENCED _FATAL _FENCED _INCONSISTENT _GAPLESS_GUARANTEE _DESTROY
    """,
    Rule(
        Ambiguous, Code.UNKNOWN, "this version of redelivery-kafka does not know the code; it may have happened"
    ): _NEWER,
    # --- one record of a request spoils it ---
    Rule(
        Unattributed,
        Code.TOO_LARGE,
        "a record, or the request that holds it, is larger than the topic's max.message.bytes: make the record "
        "smaller, or raise that, the broker's message.max.bytes and kafka.message.max.bytes",
    ): "MSG_SIZE_TOO_LARGE RECORD_LIST_TOO_LARGE INVALID_MSG_SIZE",
    Rule(
        Unattributed,
        Code.INVALID_MESSAGE,
        "the broker refuses a record (a compacted topic without a key, a timestamp out of its bounds, a schema)",
    ): """
        INVALID_RECORD INVALID_TIMESTAMP INVALID_MSG UNSUPPORTED_FOR_MESSAGE_FORMAT _INVALID_DIFFERENT_RECORD
    """,
    # --- this record never ---
    Rule(
        Permanent, Code.NO_SUCH_DESTINATION, "the topic has no such partition; correct the column 'partition'"
    ): "_UNKNOWN_PARTITION",
    Rule(Permanent, Code.INVALID_MESSAGE, "the value cannot be written in the client's format"): """
        _KEY_SERIALIZATION _VALUE_SERIALIZATION _KEY_DESERIALIZATION _VALUE_DESERIALIZATION _INVALID_TYPE
        _BAD_COMPRESSION
    """,
    Rule(
        Permanent, Code.TOO_LARGE, "the metadata of the committed offset is larger than the broker allows"
    ): "OFFSET_METADATA_TOO_LARGE INVALID_COMMIT_OFFSET_SIZE",
    # --- no record will ---
    Rule(Fatal, Code.INVALID_DESTINATION, "no topic can have this name", about_target=True): "TOPIC_EXCEPTION",
    Rule(
        Fatal,
        Code.NO_SUCH_DESTINATION,
        "no such topic exists, and the cluster creates none: provision it, or correct its name",
        about_target=True,
    ): "UNKNOWN_TOPIC_OR_PART _UNKNOWN_TOPIC",
    Rule(
        Fatal,
        Code.NOT_AUTHENTICATED,
        "the broker refuses the credentials: check kafka.security.protocol, kafka.sasl.* and kafka.ssl.*",
    ): """
        _AUTHENTICATION SASL_AUTHENTICATION_FAILED UNSUPPORTED_SASL_MECHANISM ILLEGAL_SASL_STATE
        UNACCEPTABLE_CREDENTIAL SECURITY_DISABLED PRINCIPAL_DESERIALIZATION_FAILURE INVALID_PRINCIPAL_TYPE
        DELEGATION_TOKEN_AUTH_DISABLED DELEGATION_TOKEN_NOT_FOUND DELEGATION_TOKEN_OWNER_MISMATCH
        DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    """,
    Rule(Fatal, Code.TLS_FAILED, "no TLS connection was made: check kafka.security.protocol and kafka.ssl.*"): "_SSL",
    Rule(Fatal, Code.NOT_AUTHORIZED, "this user lacks the permission: the README lists the ACLs of each operation"): """
        GROUP_AUTHORIZATION_FAILED CLUSTER_AUTHORIZATION_FAILED TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        DELEGATION_TOKEN_AUTHORIZATION_FAILED
    """,
    Rule(
        Fatal,
        Code.NOT_AUTHORIZED,
        "this user lacks the permission: the README lists the ACLs of each operation",
        about_target=True,
    ): "TOPIC_AUTHORIZATION_FAILED",
    Rule(Fatal, Code.UNSUPPORTED, "the brokers do not know this request: check their version, or that it is Kafka"): """
        UNSUPPORTED_VERSION UNSUPPORTED_COMPRESSION_TYPE UNSUPPORTED_ASSIGNOR UNSUPPORTED_ENDPOINT_TYPE
        MISMATCHED_ENDPOINT_TYPE _UNSUPPORTED_FEATURE _NOT_IMPLEMENTED _UNKNOWN_PROTOCOL
    """,
    Rule(Fatal, Code.MISCONFIGURED, "a setting is wrong, or not allowed here"): """
        INVALID_REQUIRED_ACKS INVALID_GROUP_ID INVALID_SESSION_TIMEOUT INCONSISTENT_GROUP_PROTOCOL
        GROUP_MAX_SIZE_REACHED FENCED_INSTANCE_ID INVALID_TRANSACTION_TIMEOUT INVALID_REGULAR_EXPRESSION
        INVALID_CONFIG INVALID_PARTITIONS INVALID_REPLICATION_FACTOR INVALID_REPLICA_ASSIGNMENT
        POLICY_VIOLATION TOPIC_DELETION_DISABLED _INVALID_ARG _NOT_CONFIGURED _FS _READ_ONLY
    """,
    Rule(Fatal, Code.CONFLICT, "it exists already, or needs no change"): """
        TOPIC_ALREADY_EXISTS DUPLICATE_RESOURCE ELECTION_NOT_NEEDED NO_REASSIGNMENT_IN_PROGRESS
    """,
    Rule(
        Fatal, Code.NO_SUCH_DESTINATION, "it does not exist"
    ): "RESOURCE_NOT_FOUND GROUP_ID_NOT_FOUND _UNKNOWN_GROUP _NOENT",
    BUG: """
        INVALID_REQUEST INVALID_TXN_STATE INVALID_PRODUCER_ID_MAPPING TRANSACTION_COORDINATOR_FENCED
        TRANSACTION_ABORTABLE INCONSISTENT_VOTER_SET INVALID_UPDATE_VERSION FEATURE_UPDATE_FAILED
        UNKNOWN_CONTROLLER_ID UNKNOWN_SUBSCRIPTION_ID TELEMETRY_TOO_LARGE INVALID_REGISTRATION
        INVALID_RECORD_STATE FENCED_STATE_EPOCH INVALID_VOTER_KEY DUPLICATE_VOTER VOTER_NOT_FOUND
        STREAMS_INVALID_TOPOLOGY STREAMS_INVALID_TOPOLOGY_EPOCH STREAMS_TOPOLOGY_FENCED _STATE
        _EXISTING_SUBSCRIPTION _APPLICATION _NOOP NO_ERROR
    """,
}


def kafka_error(error: object) -> KafkaError | None:
    """Return the client's error with its code; None if the client raised something else."""
    found = error.args[0] if isinstance(error, KafkaException) and error.args else error
    return found if isinstance(found, KafkaError) else None


def _describe(error: BaseException) -> ClientError:
    found = kafka_error(error)
    if found is None:
        return ClientError(str(error))
    name, text = found.name(), str(found.str())
    if name == "_AUTHENTICATION" and is_token_endpoint_unreached(text):
        return ClientError(text, codes=(_TOKEN_ENDPOINT,), name=name)
    return ClientError(text, codes=(name, _NEWER), retry_after=_RETRY_AFTER)


#: Errors of the client's Python part for a row that it cannot take, and every error that a call of the client raises.
ROW_ERRORS: Final = (TypeError, ValueError, OverflowError)
ERRORS: Final = (KafkaException, BufferError, RuntimeError, NotImplementedError, *ROW_ERRORS)

TABLE: Final = ErrorTable(
    "kafka",
    by_class={
        KafkaException: BUG,
        BufferError: _QUEUE_FULL,
        RuntimeError: BUG,
        NotImplementedError: BUG,
        **dict.fromkeys(ROW_ERRORS, _ROW),
    },
    by_code={name: rule for rule, names in _RULES.items() for name in names.split()},
    describe=_describe,
    catches=ERRORS,
)


def has_code(error: BaseException, code: int) -> bool:
    """Return whether the client raised an error with this code."""
    found = kafka_error(error)
    return found is not None and found.code() == code


def classify(error: BaseException | KafkaError, doing: str, *, rows: int = 1, own: bool = True) -> BrokerError:
    """Return redelivery's error for one that the client raised or reported, chained from it.

    Args:
        error: what the client raised, or gave a callback.
        doing: "storing in 'topic'".
        rows: how many records the request held: an error that one of them causes is the fault of a single one.
        own: the topic is the URL's own, not a row's.
    """
    return TABLE.error(_exception(error), doing, rows=rows, own_target=own)


def classify_reading(error: BaseException | KafkaError, doing: str) -> BrokerError:
    """Return redelivery's error of a call that changes nothing, so that an ambiguous one can be tried again."""
    error = _exception(error)
    rule = _NO_LEADER if has_code(error, UNKNOWN_PARTITION) else None
    return TABLE.error(error, doing, rule=rule, safe=True, rows=1)


@contextmanager
def while_doing(doing: str) -> Iterator[None]:
    """Raise redelivery's error for one that the client raises inside, chained from it."""
    with TABLE.while_doing(doing, rows=1):
        yield


@contextmanager
def while_reading(doing: str) -> Iterator[None]:
    """Likewise for calls that change nothing."""
    try:
        yield
    except ERRORS as error:
        raise classify_reading(error, doing) from error


def unknown_target(error: BaseException | KafkaError) -> KafkaError | None:
    """Return the client's error for a topic or partition that it does not know; None for any other error."""
    found = kafka_error(error)
    return found if found is not None and found.name() in UNKNOWN_TARGET else None


def topic_changed(doing: str, partitions: int, native_code: str) -> Retriable:
    """Return the error of a row whose partition exists, or that named none, where the client knew an older topic."""
    text = f"the topic was changed while it was written to, and has {partitions} partitions now; the row was not sent"
    return Retriable(f"kafka: {doing}: {text}", code=Code.CONFLICT, native_code=native_code)


def is_refused(error: KafkaError) -> bool:
    """Return whether a connection was refused for a reason which another attempt does not change."""
    return TABLE.rule(KafkaException(error)).code in {Code.NOT_AUTHENTICATED, Code.TLS_FAILED}


def _exception(error: BaseException | KafkaError) -> BaseException:
    return KafkaException(error) if isinstance(error, KafkaError) else error
