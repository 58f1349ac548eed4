"""The delivery vocabulary: what a job asks of its delivery (`DeliverySpec`) and what it got (`DeliveryStatus`).

This module holds only the meaning. `formats/specs/` writes and reads it (Knative, Connect, Spark options),
`policy/backoff.py` computes the waiting times, and `policy/decisions.py` decides what follows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Final, Literal, Self, TypeAlias, get_args

from redelivery.base.urls import is_reference, redact, redact_options
from redelivery.errors import InvalidSpec

#: A retry timeout that never ends (Connect's -1).
FOREVER: Final = timedelta.max
#: A number of retries, or of tolerated errors, without limit (Connect's -1).
UNLIMITED: Final = -1
#: The destination's own dead letter place, as a sink.
NATIVE: Final = "native"

BackoffPolicy: TypeAlias = Literal["linear", "exponential"]
#: Which formula applies: the design text's (default), that of Knative's running code, or Connect's.
BackoffProfile: TypeAlias = Literal["knative", "knative-code", "connect"]
Tolerance: TypeAlias = Literal["none", "all"]
EventFormat: TypeAlias = Literal["json", "binary"]
#: How an error context is written into a letter; `knative` means both of Knative's, `knativeerror` and `deadletter`.
LetterDialect: TypeAlias = Literal["connect", "knative", "knativeerror", "deadletter", "json"]
RateDuration: TypeAlias = Literal["minute", "hour", "day"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ref:
    """A KReference: a named object that a plugin resolves to a URL (`redelivery.contract.broker.Broker.resolve`).

    Attributes:
        kind, name: of the object, which has the same name at the broker.
        api_version: `group/version`, or empty.
        namespace: of Kubernetes, or empty.
    """

    kind: str
    name: str
    api_version: str = ""
    namespace: str = ""

    @property
    def group_kind(self) -> str:
        """Return `Kind.group`, as Kubernetes writes it, of any version; the kind alone where no apiVersion is given."""
        return f"{self.kind}.{self.api_version.partition('/')[0]}" if self.api_version else self.kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Sink:
    """Where letters go: a URL (absolute, or relative to the `ref`), `native`, or a `ref`.

    Attributes:
        uri: the URL or `native`; empty where only `ref` is given.
        ref: the object that the uri is relative to, or the sink itself.
        options: this sink's own client options (`errors.deadletterqueue.producer.*`), secrets as references.
        type: the event type under which events are reposted here; None: the spec's `dead_letter_type`.
    """

    uri: str = ""
    ref: Ref | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    type: str | None = None

    def __post_init__(self) -> None:
        if self.type == "":
            msg = "deadLetterSink: type must not be empty; leave it out to keep that of each event"
            raise InvalidSpec(msg)
        if not self.uri and self.ref is None:
            msg = "deadLetterSink: give a uri, a ref, or 'native'"
            raise InvalidSpec(msg)
        if self.uri == NATIVE and self.ref is not None:
            msg = "deadLetterSink: 'native' and a ref are two places; keep one of both"
            raise InvalidSpec(msg)

    def __repr__(self) -> str:  # a spec is logged and shown; its sinks' secrets must not be
        shown = f"uri={redact(self.uri)!r}, ref={self.ref!r}, options={redact_options(self.options)!r}"
        return f"Sink({shown}, type={self.type!r})"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliverySpec:
    """How rows are delivered. None means "not given", which is not the same as 0.

    Knative's fields (`formats/specs/knative.py`):
        dead_letter_sink: tried in turn; empty: no sink.
        retry: retries before the sink; n retries are n + 1 attempts. UNLIMITED only from Connect's older text.
        backoff_policy, backoff_delay, backoff_max, backoff_profile: see `policy/backoff.py`.
        timeout: of one attempt.
        retry_after_max: caps a wait that the broker itself requests.
        format: how events are written to the sink.

    Connect's (`formats/specs/connect.py`):
        retry_timeout: time budget for retrying one record; zero: no retry; FOREVER: without end.
        retry_delay_max: caps one wait.
        tolerance: whether a record that failed permanently fails the job.
        tolerance_limit: tolerated errors; more fail the job. None or UNLIMITED: no limit.
        tolerance_rate_limit, tolerance_rate_duration: the same within a sliding window.
        log_enable, log_include_messages, log_include_configs: what is logged of each failure.
        sink_context_headers: write the error context into the letter's headers. None: yes.
        sink_include_messages, sink_include_configs: put the record, or our redacted settings, into the JSON context.
        sink_partitions, sink_replication_factor: of a sink that provisioning creates.

    Ours:
        dead_letter_dialects: in which dialects the error context is written into letters. None: the sink's own, and
            also Knative's where the message is a CloudEvent.
        dead_letter_type: the type under which events are reposted to sinks; None: their own. A redrive restores it.
        letter_key: reference of the key that signs letters (`env:NAME`, `file:PATH`); None: letters are not signed.
        allow_skip: permits tolerance "all" without a sink: failed rows are then counted, logged and lost.
    """

    dead_letter_sink: tuple[Sink, ...] = ()
    retry: int | None = None
    backoff_policy: BackoffPolicy | None = None
    backoff_delay: timedelta | None = None
    backoff_max: timedelta | None = None
    backoff_profile: BackoffProfile | None = None
    timeout: timedelta | None = None
    retry_after_max: timedelta | None = None
    format: EventFormat | None = None

    retry_timeout: timedelta | None = None
    retry_delay_max: timedelta | None = None
    tolerance: Tolerance | None = None
    tolerance_limit: int | None = None
    tolerance_rate_limit: int | None = None
    tolerance_rate_duration: RateDuration | None = None
    log_enable: bool | None = None
    log_include_messages: bool | None = None
    log_include_configs: bool | None = None
    sink_context_headers: bool | None = None
    sink_include_messages: bool | None = None
    sink_include_configs: bool | None = None
    sink_partitions: int | None = None
    sink_replication_factor: int | None = None

    dead_letter_dialects: tuple[LetterDialect, ...] | None = None
    dead_letter_type: str | None = None
    letter_key: str | None = None
    allow_skip: bool = False

    def __post_init__(self) -> None:
        self._check_types()
        self._check_dialects()
        key: object = self.letter_key
        if key is not None and (not isinstance(key, str) or not is_reference(key)):
            _refuse("letter_key", "must be a reference, as in 'env:NAME' or 'file:PATH', and never the key itself")
        self._check_at_least(UNLIMITED, "retry", "tolerance_limit", "tolerance_rate_limit")
        self._check_at_least(1, "sink_partitions", "sink_replication_factor")
        zero = timedelta(0)
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, timedelta) and value < zero:
                _refuse(item.name, f"must not be negative, not {value}")
        for name in ("timeout", "retry_delay_max"):
            if getattr(self, name) == zero:
                _refuse(name, "must be more than 0")
        if self.backoff_policy and self.backoff_delay is None:
            _refuse("backoff_policy", "needs backoffDelay, the delay that it grows from")
        if self.backoff_profile and (self.backoff_profile == "connect") != (self.backoff_delay is None):
            why = "does not heed backoffDelay" if self.backoff_delay is not None else "needs backoffDelay"
            _refuse("backoff_profile", f"{self.backoff_profile!r} {why}")
        if self.tolerates and not self.dead_letter_sink and not self.allow_skip:
            why = "'all' without a deadLetterSink would lose rows; name a sink, or set allowSkip=true to skip and count"
            _refuse("tolerance", why)

    def _check_types(self) -> None:
        """Check the values given in Python; `formats/` checks those given as text."""
        sinks: object = self.dead_letter_sink
        if not isinstance(sinks, tuple) or not all(isinstance(each, Sink) for each in sinks):
            _refuse("dead_letter_sink", "must be a tuple of Sink, as in (Sink(uri='native'),)")
        for name in _DURATIONS:
            value = getattr(self, name)
            if value is not None and not isinstance(value, timedelta):
                _refuse(name, f"must be a timedelta, not {type(value).__name__}")
        for name in _NUMBERS:
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
                _refuse(name, f"must be an int, not {type(value).__name__}")
        for name, known in _CHOICES.items():
            value = getattr(self, name)
            if value is not None and value not in known:
                _refuse(name, f"must be one of {', '.join(known)}, not {value!r}")

    def _check_dialects(self) -> None:
        event_type: object = self.dead_letter_type
        if event_type is not None and (not isinstance(event_type, str) or not event_type):
            _refuse("dead_letter_type", f"must be text, as in 'com.example.dead', not {event_type!r}")
        chosen: object = self.dead_letter_dialects
        if chosen is None:
            return
        known = get_args(LetterDialect)
        if not isinstance(chosen, tuple) or not chosen or len({*chosen}) < len(chosen) or {*chosen} - {*known}:
            _refuse("dead_letter_dialects", f"must be a tuple of {', '.join(known)}, each once, not {chosen!r}")

    def _check_at_least(self, least: int, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            if value is not None and value < least:
                _refuse(name, f"must be {least} or more, not {value}" + (" (-1: no limit)" if least < 0 else ""))

    @property
    def tolerates(self) -> bool:
        """Whether the job goes on after a record failed permanently; if unset: whether the spec names a sink."""
        if self.tolerance is None:
            return bool(self.dead_letter_sink)
        return self.tolerance == "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryStatus:
    """Where provisioning found that the first sink of a spec leads; empty where the spec has no sink.

    Attributes:
        dead_letter_sink_uri: its URL (Knative's first text: `deadLetterSinkUri`), redacted.
        dead_letter_channel: the same as a reference, where it is a native place or was given as a reference (second
            text: `deadLetterChannel`).
    """

    dead_letter_sink_uri: str | None = None
    dead_letter_channel: Ref | None = None

    @classmethod
    def of(cls, spec: DeliverySpec, *, uri: str, channel: Ref) -> Self:
        """Return the status at a destination with this native place: empty unless that is the spec's first sink.

        Args:
            spec: the spec.
            uri: URL of the native place; it is redacted here.
            channel: the native place as a reference.
        """
        if not spec.dead_letter_sink or spec.dead_letter_sink[0].uri != NATIVE:
            return cls()
        return cls(dead_letter_sink_uri=redact(uri), dead_letter_channel=channel)


_DURATIONS: Final = (
    "backoff_delay",
    "backoff_max",
    "timeout",
    "retry_after_max",
    "retry_timeout",
    "retry_delay_max",
)
_NUMBERS: Final = ("retry", "tolerance_limit", "tolerance_rate_limit", "sink_partitions", "sink_replication_factor")
_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "backoff_policy": get_args(BackoffPolicy),
    "backoff_profile": get_args(BackoffProfile),
    "tolerance": get_args(Tolerance),
    "format": get_args(EventFormat),
    "tolerance_rate_duration": get_args(RateDuration),
}


def _refuse(name: str, why: str) -> None:
    head, *tail = name.split("_")
    msg = f"{head}{''.join(part.capitalize() for part in tail)}: {why}"
    raise InvalidSpec(msg)
