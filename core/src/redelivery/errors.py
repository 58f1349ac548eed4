"""The one error tree: every error a user or the engine meets is one of these.

::

    RedeliveryError
     x ConfigurationError (also a ValueError)     the caller wrote something wrong; nothing was sent
       + InvalidURL
       + UnknownScheme
       + UnknownOption
       + InvalidSpec
       + MissingSecret
     x Unsupported                                 the broker says by its capabilities that it cannot
     x PluginError                                 a plugin did not load, or claims a name that it may not
     x ContractViolation                           a plugin broke `redelivery.contract.broker`
     x BrokerError                                 a broker's answer, in one of five classes
       + Retriable                                 nothing happened; try again
         . Throttled                               ... not before `retry_after` seconds
         . NotSent                                 ... held back, because an earlier message of its key failed
       + Ambiguous                                 it may have happened; resend under the same id
       + Permanent                                 this message will never be accepted
         . Terminated                              ... because a handler said so
       + Unattributed                              a whole client batch failed, the culprit is unknown, nothing stored
       + Fatal                                     no message will be accepted
     x LeaseLost                                   a received message is no longer ours to settle
     x DeliveryFailed                              the engine gave up: the job must fail
       + ToleranceExceeded                         more errors than the spec tolerates
     x JournalError                                a redrive cannot use its journal; confirmed letters stay confirmed
     x ExportFailed                                letters could not be written to a file; they are still in place
     x Declined                                    a person was asked and said no; nothing was done
     x NotTerminated                               a message could not be given up as asked: it was settled before
     x TerminalNack                                raised by a handler: a terminal nack

A plugin maps every error of its client library to a `BrokerError` in one place and chains the original.
Errors do not know any broker, nor decide what follows: `redelivery.policy` does that.
"""

from __future__ import annotations

from typing import ClassVar, TypeVar

from redelivery.codes import Code, label

_E = TypeVar("_E", bound="BrokerError")


class RedeliveryError(Exception):
    """Base class of all errors that this library raises on purpose."""


class ConfigurationError(RedeliveryError, ValueError):
    """The caller wrote something wrong; raised before anything is sent."""


class InvalidURL(ConfigurationError):
    """A destination URL does not parse, or holds something forbidden (a password, under Spark)."""


class UnknownScheme(ConfigurationError):
    """No installed plugin opens this URL scheme."""


class UnknownOption(ConfigurationError):
    """An unknown option or field; the message names the nearest known one."""


class InvalidSpec(ConfigurationError):
    """A delivery spec holds a value out of range, or gives one field twice in two dialects."""


class MissingSecret(ConfigurationError):
    """A secret reference cannot be resolved on this machine; another machine may have it."""


class Unsupported(RedeliveryError):
    """The broker's capabilities say `none` for the feature that was requested."""


class PluginError(RedeliveryError):
    """A plugin failed to load, has another contract version, or claims a scheme that is already taken."""


class ContractViolation(RedeliveryError):
    """A plugin broke the contract in `redelivery.contract.broker` (settled twice, blamed a missing row, ...)."""


class BrokerError(RedeliveryError):
    """The answer of a broker or its client, sorted into one of five classes.

    Attributes:
        code: why, in the words that all brokers share; letters are grouped by it. A class with a single meaning has its
            own default, the others `Code.UNKNOWN`.
        native_code: the client's own short name or number for it; never holds a secret.
    """

    #: the error class as one word, as it appears in contexts and reports
    kind = "error"
    default_code: ClassVar[Code] = Code.UNKNOWN

    def __init__(self, message: str, *, code: Code | None = None, native_code: str | None = None) -> None:
        super().__init__(message)
        self.code = self.default_code if code is None else code
        self.native_code = native_code

    @property
    def label(self) -> str:
        """The code and the native code as one text; the class, where neither is known."""
        return label(None if self.code is Code.UNKNOWN else self.code, self.native_code) or self.kind

    def reclassified(self, kind: type[_E], message: str | None = None) -> _E:
        """Return the same error, by its codes, in another class; chain it from the original.

        Args:
            kind: the class.
            message: the text, where it changes too.
        """
        code = None if self.code is Code.UNKNOWN else self.code
        return kind(str(self) if message is None else message, code=code, native_code=self.native_code)

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), str(self), self.__dict__))


def thrown(error: BaseException) -> BaseException:
    """The error that was really raised: the client's or handler's own, from which a `BrokerError` is chained."""
    while isinstance(error, BrokerError) and error.__cause__ is not None:
        error = error.__cause__
    return error


def _rebuild(cls: type[BrokerError], message: str, state: dict[str, object]) -> BrokerError:
    error = cls(message)
    error.__dict__.update(state)
    return error


class Retriable(BrokerError):
    """Nothing happened at the broker; the same message may be sent again."""

    kind = "retriable"


class Throttled(Retriable):
    """Nothing happened, and the broker asks for a pause of `retry_after` seconds."""

    default_code = Code.THROTTLED

    def __init__(
        self, message: str, *, code: Code | None = None, native_code: str | None = None, retry_after: float = 0.0
    ) -> None:
        super().__init__(message, code=code, native_code=native_code)
        self.retry_after = retry_after


class NotSent(Retriable):
    """Not even tried, and counts as no attempt: an earlier message of its key failed (see `Batch.ordered`).

    Where no order is kept, a sender may report it of rows that it did not begin by the deadline: the rows before them
    took all the time. It must not where nothing was answered, because that is an outage. It counts as an attempt if
    the engine heard of no other row since it sent these.
    """

    default_code = Code.NOT_SENT


class Ambiguous(BrokerError):
    """It may have happened: a message that is sent again must carry the same id."""

    kind = "ambiguous"


class Permanent(BrokerError):
    """The broker will never accept this message, however often it is sent; its neighbours are not affected."""

    kind = "permanent"


class Terminated(Permanent):
    """A handler gave the message up, whatever retries remained."""

    kind = "terminated"
    default_code = Code.TERMINATED


class Unattributed(BrokerError):
    """A client batch failed as a whole; nothing was stored and the culprit is unknown.

    The engine sends the messages again in halves, a half of one message with `Batch.isolate`, to find the culprit.
    """

    kind = "unattributed"


class Fatal(BrokerError):
    """The broker will accept no message: wrong credentials, a missing target named by the URL, a corrupt store."""

    kind = "fatal"


class LeaseLost(RedeliveryError):
    """The lease of a received message has run out or was revoked; it must not be settled any more."""


class DeliveryFailed(RedeliveryError):
    """The engine gave up, so the job must fail. The text holds the primary error and the errors of the sinks."""


class ToleranceExceeded(DeliveryFailed):
    """More records failed than `errors.tolerance` and its limits allow."""


class JournalError(RedeliveryError):
    """The journal of a redrive is in use, damaged or cannot be written, also after letters were confirmed."""


class ExportFailed(RedeliveryError):
    """The file for dead letters could not be written; the letters are still in place."""


class Declined(RedeliveryError):
    """A person was asked for consent and refused; nothing was done."""


class NotTerminated(RedeliveryError):
    """A message was not given up as `terminate` asked: it is not under lease, or was settled before."""


class TerminalNack(RedeliveryError):
    """Raised by a handler: dead-letter this message now, whatever retries remain (a terminal nack)."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
