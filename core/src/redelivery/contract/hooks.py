"""The hooks by which a plugin is found.

`redelivery_plugin`: a broker; `redelivery_dialect`: a header dialect; `redelivery_decoder`: a body's form for people.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pluggy

from redelivery.contract.broker import BrokerPlugin
from redelivery.contract.message import Message

#: Entry point group, and pluggy's project name.
GROUP: Final = "redelivery"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderDialect:
    """How other software writes into headers why a message is dead. redelivery reads it, and never writes it.

    A plugin provides one by the hook `redelivery_dialect`.

    Attributes:
        name: short, lower case.
        names: the headers that it reads.
        read: returns fields of an `ErrorContext` by name. It gets those of the headers that exist, as bytes, and
            returns no field where they say nothing.
    """

    name: str
    names: frozenset[str]
    read: Callable[[Mapping[str, bytes]], Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """How people read a body that is neither text nor JSON (Avro, Protobuf, compressed), on the operator's page.

    A plugin provides one by the hook `redelivery_decoder`.

    Attributes:
        name: short, lower case; the page offers it under this name.
        decode: returns a message's body as text, None where it is not in this form. Anyone may have written the
            message. It is called in its own thread, several at once, and shall return within two seconds; what it
            raises is shown in one line.
    """

    name: str
    decode: Callable[[Message], str | None]


_hookspec = pluggy.HookspecMarker(GROUP)
#: Marks a plugin's implementation: `@hookimpl def redelivery_plugin() -> BrokerPlugin`.
hookimpl = pluggy.HookimplMarker(GROUP)


class Hooks:
    """The hooks that a plugin may implement."""

    @_hookspec
    def redelivery_plugin(self) -> BrokerPlugin:
        """Return this module's broker. Called once, at discovery; no I/O."""
        raise NotImplementedError

    @_hookspec
    def redelivery_dialect(self) -> HeaderDialect | Sequence[HeaderDialect]:
        """Return the header dialects that this module reads, one or several. Called once, at discovery; no I/O.

        Where a letter has headers of several, the first that says anything counts.
        """
        raise NotImplementedError

    @_hookspec
    def redelivery_decoder(self) -> Decoder | Sequence[Decoder]:
        """Return how this module decodes bodies for people, one way or several. Called once, at discovery; no I/O."""
        raise NotImplementedError
