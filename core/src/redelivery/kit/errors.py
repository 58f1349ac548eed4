"""A table that turns a client library's errors into redelivery's, and the texts that go with them.

::

    TABLE = ErrorTable(
        "carrier",
        by_class={ConnectionError: Rule(Ambiguous, Code.CONNECTION_LOST, "it may have been stored or not")},
        by_code={404: Rule(Fatal, Code.NO_SUCH_DESTINATION, "provision it, or correct the URL", about_target=True)},
        describe=lambda error: ClientError(str(error), codes=(getattr(error, "status", None),)),
    )

    with TABLE.while_doing("sending to queue 'orders'"):
        client.publish(...)
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from redelivery.base.secrets import guard_loggers
from redelivery.base.urls import nearest, quoted, redact
from redelivery.codes import Code
from redelivery.errors import (
    Ambiguous,
    BrokerError,
    Fatal,
    Permanent,
    RedeliveryError,
    Retriable,
    Throttled,
    Unattributed,
)

__all__ = [
    "BUG",
    "ClientError",
    "Code",
    "ErrorTable",
    "Rule",
    "guard_loggers",
    "nearest",
    "quoted",
    "redact",
]

#: Characters of the client's own text, and of its word for the error: the broker may have chosen both.
_MOST: Final = 500
_NAME: Final = 100


@dataclass(frozen=True, slots=True)
class Rule:
    """The meaning of an error.

    Attributes:
        kind: the error class that is raised.
        code: why it failed, in words that mean the same on every broker.
        advice: what to do about it, or what happened to the message; ends the error's text.
        about_target: the error concerns the destination that was named. Where a row names its own destination, it is
            the fault of that row alone.
    """

    kind: type[BrokerError]
    code: Code
    advice: str
    about_target: bool = False


#: How a plugin's own mistakes, and its client's, are reported.
BUG: Final = Rule(Fatal, Code.BUG, "this is an error of the plugin or of its client library; please report it")
_NOTHING_CHANGED: Final = "nothing was changed, so it may be tried again"


@dataclass(frozen=True, slots=True)
class ClientError:
    """A client library's error, read.

    Attributes:
        text: what it says.
        codes: its codes, the most specific first; each is looked up in `ErrorTable.by_code`.
        name: the error's name, for `BrokerError.native_code`; None: its first code, else its class.
        cause: the error itself, without what the client wrapped around it; None: the error as it was raised.
        retry_after: seconds for which the broker asks for a pause.
    """

    text: str
    codes: Sequence[Hashable] = ()
    name: str | None = None
    cause: Any = None
    retry_after: float = 0.0


class ErrorTable:
    """The rules of one client library.

    A rule is looked up by text, then by code, then by class.

    Args:
        broker: the plugin's name; each error's text begins with it.
        by_class: rules by class of exception; the nearest base class applies.
        by_code: rules by the client's own codes, of any hashable type.
        by_text: rules for a code that means different things: (code, part of the text, rule). A code of None stands
            for every error. The first match applies.
        otherwise: the rule for an error that no other rule matches.
        describe: reads an exception, or what a client gives a callback instead of one.
        catches: classes that `while_doing` catches; None: those of `by_class`.
    """

    def __init__(
        self,
        broker: str,
        *,
        by_class: Mapping[type[BaseException], Rule],
        by_code: Mapping[Any, Rule] | None = None,
        by_text: Sequence[tuple[Hashable, str, Rule]] = (),
        otherwise: Rule = BUG,
        describe: Callable[[Any], ClientError] = lambda error: ClientError(str(error)),
        catches: tuple[type[BaseException], ...] | None = None,
    ) -> None:
        self.broker = broker
        self.by_class = by_class
        self.by_code: Mapping[Any, Rule] = by_code or {}
        self.by_text = by_text
        self.otherwise = otherwise
        self.catches = tuple(by_class) if catches is None else catches
        self._describe = describe

    def rule(self, error: Any) -> Rule:
        """Return the rule for a client's error."""
        return self._rule(error, self._describe(error))

    def error(
        self,
        error: Any,
        doing: str,
        *,
        rule: Rule | None = None,
        safe: bool = False,
        rows: int = 0,
        own_target: bool = True,
        needs: str = "",
    ) -> BrokerError:
        """Return redelivery's error for a client's, chained from it.

        Args:
            error: what the client raised, or gave a callback.
            doing: the action that failed: "sending to queue 'orders'".
            rule: used instead of the table's own.
            safe: the call changes nothing at the broker (it connects, or reads), so Ambiguous becomes Retriable.
            rows: how many messages the call sent. Unattributed becomes Permanent for one, and Fatal for none.
            own_target: the destination is the URL's own. Where a row named it, a rule `about_target` is Permanent.
            needs: permissions that the call takes; the text names them if one is missing.
        """
        told = self._describe(error)
        found = _adjusted(rule or self._rule(error, told), safe=safe, rows=rows, own_target=own_target, needs=needs)
        cause = error if told.cause is None else told.cause
        name = str(told.name or next((code for code in told.codes if code is not None), type(cause).__name__))
        name, text = _line(name, _NAME), _line(told.text, _MOST)
        shown = f"{text} ({name})" if text and text != name else name
        whole = f"{self.broker}: {doing}: {shown}; {found.advice}"
        more = {"retry_after": told.retry_after} if issubclass(found.kind, Throttled) else {}
        made = found.kind(whole, code=found.code, native_code=name, **more)
        if isinstance(error, BaseException):
            made.__cause__ = error
        return made

    @contextmanager
    def while_doing(
        self,
        doing: str,
        *,
        safe: bool = False,
        rows: int = 0,
        own_target: bool = True,
        needs: str = "",
        also: tuple[type[BaseException], ...] = (),
    ) -> Iterator[None]:
        """Raise redelivery's error for whatever the client raises inside, chained. Errors of redelivery pass.

        The arguments are those of `error`; `also` are further classes to catch.
        """
        try:
            yield
        except RedeliveryError:  # an error of configuration is a ValueError too
            raise
        except (*self.catches, *also) as error:
            raise self.error(error, doing, safe=safe, rows=rows, own_target=own_target, needs=needs) from error

    def _rule(self, error: Any, told: ClientError) -> Rule:
        for of, part, rule in self.by_text:
            if (of is None or of in told.codes) and part in told.text:
                return rule
        for code in told.codes:
            if code in self.by_code:
                return self.by_code[code]
        cause = error if told.cause is None else told.cause
        return next((self.by_class[base] for base in type(cause).__mro__ if base in self.by_class), self.otherwise)


def _line(text: str, most: int) -> str:
    """Return the beginning of a text as one line without secrets."""
    return redact(" ".join(text.split()))[:most]


def _adjusted(rule: Rule, *, safe: bool, rows: int, own_target: bool, needs: str) -> Rule:
    """Adapt the rule to what is known of the call."""
    if safe and issubclass(rule.kind, Ambiguous):
        rule = replace(rule, kind=Retriable, advice=_NOTHING_CHANGED)
    if rows <= 1 and issubclass(rule.kind, Unattributed):
        rule = replace(rule, kind=Permanent if rows else Fatal)
    if rule.about_target and not own_target and issubclass(rule.kind, Fatal):
        rule = replace(rule, kind=Permanent)
    if needs and rule.code is Code.NOT_AUTHORIZED:
        rule = replace(rule, advice=f"{rule.advice}; it needs {needs}")
    return rule
