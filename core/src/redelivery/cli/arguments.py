"""Arguments that several commands share: a destination, its delivery spec, its client options."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from redelivery import registry
from redelivery.base.secrets import redact, refuse_literal
from redelivery.cli.output import SHOWN_TO_ALL, say
from redelivery.contract.spec import DeliverySpec
from redelivery.deadletters.queue import DeadLetterQueue, dead_letters
from redelivery.deadletters.selection import Selection
from redelivery.errors import ConfigurationError
from redelivery.formats.specs import files, options

#: Exit status: no letter has one of the ids that were named.
NO_SUCH_LETTER: Final = 1
#: Ids that an error names.
_NAMED: Final = 5


def add_spec(parser: argparse.ArgumentParser) -> None:
    """Add `--spec` and `--option`."""
    parser.add_argument(
        "--spec", type=Path, help="a delivery spec: YAML or JSON as Knative writes it, or Connect's .properties"
    )
    _add_option(parser, "an option of the delivery spec or of the client (<plugin>.<name>); may be repeated")


def add_client(parser: argparse.ArgumentParser) -> None:
    """Add `--option` for the client alone."""
    _add_option(parser, "an option of the client, <plugin>.<name>=VALUE; a secret as env:NAME; may be repeated")


def _add_option(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help=text)


def add_subscription(parser: argparse.ArgumentParser) -> None:
    """Add `--subscription`."""
    parser.add_argument(
        "--subscription", metavar="NAME", help="of the destination, the subscription of this name, with its own copy"
    )


def add_place(parser: argparse.ArgumentParser, *, with_spec: bool = False) -> None:
    """Add the queue that is read, and with a spec: how its letters are moved."""
    parser.add_argument("url", help="the destination whose dead letters are meant")
    add_subscription(parser)
    parser.add_argument(
        "--sink",
        metavar="URL",
        help="where its letters went, if not to its native place; a redrive sends back those of URL",
    )
    parser.add_argument(
        "--key",
        metavar="REFERENCE",
        help="env:NAME or file:PATH of the key that letters were signed with (letterKey), or several with commas "
        "between; what the headers of other letters say is not believed",
    )
    (add_spec if with_spec else add_client)(parser)


def add_where(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that select letters."""
    parser.add_argument(
        "--where",
        action="append",
        default=[],
        metavar="CONDITION",
        help="only letters of which this is true, as kind=permanent, reason~timeout, age>PT1H, header.tenant=acme; "
        "may be repeated, and then all must be",
    )
    parser.add_argument("--id", action="append", default=[], metavar="ID", help="only this one; may be repeated")


def add_threads(parser: argparse.ArgumentParser) -> None:
    """Add `--threads`."""
    parser.add_argument(
        "--threads",
        type=_count,
        default=min(4, os.cpu_count() or 1),
        metavar="N",
        help="readers side by side, where the broker can (default: one a core, at most 4)",
    )


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise ValueError(text)
    return count


def no_such_letter(ids: Sequence[str]) -> int:
    """Say that no letter has one of these ids; return the exit status."""
    named = ", ".join(repr(each) for each in ids[:_NAMED]) + (f" and {len(ids) - _NAMED} more" if ids[_NAMED:] else "")
    say(f"redelivery: no such letter: {named}; `redelivery dead-letters list` shows them", error=True)
    return NO_SUCH_LETTER


def client_of(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the client's options. Raises ConfigurationError."""
    return dict(_pairs(arguments))


def destination_of(arguments: argparse.Namespace, client: Mapping[str, str]) -> str:
    """Return the URL of the destination, or of its subscription. Raises ConfigurationError, Unsupported."""
    url: str = arguments.url
    if arguments.subscription is None:
        return url
    return registry.subscription_url(url, arguments.subscription, registry.own_options(url, client))


def spec_and_client(arguments: argparse.Namespace) -> tuple[DeliverySpec, dict[str, str]]:
    """Return the spec, and the client's options. Raises ConfigurationError."""
    spec_options: dict[str, str] = {}
    client: dict[str, str] = {}
    for name, value in _pairs(arguments):
        (client if registry.is_client_option(name) else spec_options)[name] = value
    if arguments.spec is None:
        return options.read(spec_options), client
    if spec_options:
        raise ConfigurationError(f"the delivery spec is given twice: by --spec, and by {', '.join(spec_options)}")
    return files.read(arguments.spec, name="--spec"), client


def _pairs(arguments: argparse.Namespace) -> list[tuple[str, str]]:
    pairs = []
    for given in arguments.option:
        name, sign, value = given.partition("=")
        if not sign:
            raise ConfigurationError(f"--option {redact(given)!r}: it is written NAME=VALUE")
        refuse_literal(name, value, shown=SHOWN_TO_ALL)
        pairs.append((name, value))
    return pairs


def opened(arguments: argparse.Namespace, client: Mapping[str, str] | None = None) -> DeadLetterQueue:
    """Open the queue that the arguments name; read the client's options here where they are not given."""
    options = client_of(arguments) if client is None else client
    return dead_letters(destination_of(arguments, options), sink=arguments.sink, options=options, key=arguments.key)


def selection_of(arguments: argparse.Namespace) -> Selection:
    """Return the selection that the arguments give."""
    where = Selection.parse(*arguments.where)
    return where.of(arguments.id) if arguments.id else where
