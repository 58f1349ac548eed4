"""Arguments that several commands share: a destination, its delivery spec, its client options."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from redelivery import places, registry
from redelivery.base.secrets import redact, redact_url, refuse_literal
from redelivery.cli.output import SHOWN_TO_ALL, say
from redelivery.codes import Code
from redelivery.contract.spec import DeliverySpec
from redelivery.deadletters.queue import DeadLetterQueue, dead_letters
from redelivery.deadletters.selection import Selection
from redelivery.errors import ConfigurationError, Fatal, RedeliveryError
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
        "--subscription",
        metavar="NAME",
        help="the subscription of the destination with this name; it has its own copy of each message",
    )


def add_place(parser: argparse.ArgumentParser, *, with_spec: bool = False) -> None:
    """Add the queue that is read, and with a spec: how its letters are moved."""
    parser.add_argument("url", help="the destination whose dead letters are meant: a URL, or a name in redelivery.toml")
    add_subscription(parser)
    parser.add_argument(
        "--sink",
        metavar="URL",
        help="where the letters went, if not to the destination's native place; a redrive sends back those that "
        "failed at the destination",
    )
    parser.add_argument(
        "--key",
        metavar="REFERENCE",
        help="env:NAME or file:PATH of the key that letters were signed with (letterKey), or several with commas "
        "between; the headers of other letters are not trusted",
    )
    parser.add_argument(
        "--triage",
        type=Path,
        metavar="FILE",
        help="the file that says which letters are parked (default: one file per place)",
    )
    add_config(parser)
    (add_spec if with_spec else add_client)(parser)


def add_where(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that select letters."""
    parser.add_argument(
        "--where",
        action="append",
        default=[],
        metavar="CONDITION",
        help="only letters that match, as in kind=permanent, reason~timeout, age>PT1H, header.tenant=acme; if "
        "repeated, only letters that match all",
    )
    parser.add_argument(
        "--id", action="append", default=[], metavar="ID", help="only the letter with this id; may be repeated"
    )
    parser.add_argument(
        "--group",
        metavar="FINGERPRINT",
        help="only letters of this group, as `stats --by fingerprint` shows it: short for --where group=FINGERPRINT",
    )


def add_who(parser: argparse.ArgumentParser) -> None:
    """Add `--who`."""
    parser.add_argument("--who", metavar="NAME", help="who does it, for the audit log (default: this user)")


def add_config(parser: argparse.ArgumentParser) -> None:
    """Add `--config`: the command's URL may be the name of a place (`resolve_place`)."""
    parser.set_defaults(names_place=True)
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="the file that names places, in place of the redelivery.toml in this folder or above it",
    )


def resolve_place(parsed: argparse.Namespace) -> None:
    """Replace the name of a place by what its file says; what the command line says counts more.

    Raises:
        ConfigurationError: the file cannot be read or is wrong, or no place has this name.
    """
    if not places.is_name(parsed.url):
        return
    place = places.known(parsed.config).named(parsed.url)
    given = {each.partition("=")[0] for each in parsed.option}
    own_spec = not all(map(registry.is_client_option, given))  # fields of a spec, and a spec is given once
    parsed.url = place.url
    for name in ("sink", "key", "subscription", *(() if own_spec else ("spec",))):
        if getattr(parsed, name, "") is None:
            setattr(parsed, name, getattr(place, name))
    parsed.option = [*(f"{name}={value}" for name, value in place.options.items() if name not in given), *parsed.option]


def add_threads(parser: argparse.ArgumentParser) -> None:
    """Add `--threads`."""
    parser.add_argument(
        "--threads",
        type=_count,
        default=min(4, os.cpu_count() or 1),
        metavar="N",
        help="readers side by side, where the broker can (default: one per core, at most 4)",
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
    return dead_letters(
        destination_of(arguments, options),
        sink=arguments.sink,
        options=options,
        key=arguments.key,
        triage=arguments.triage,
    )


@contextmanager
def looking(arguments: argparse.Namespace) -> Iterator[DeadLetterQueue]:
    """Open the queue that the arguments name, only to look at it.

    Where there is no such queue, the error says whether the destination itself exists: the name may be mistyped.
    """
    try:
        with opened(arguments) as dlq:
            yield dlq
    except Fatal as error:
        if error.code != Code.NO_SUCH_DESTINATION or arguments.sink is not None or not _exists(arguments):
            raise
        raise error.reclassified(
            Fatal,
            f"{error}; the destination exists, only its dead letter queue does not: "
            f"`redelivery apply '{redact_url(arguments.url)}'` creates it",
        ) from error


def _exists(arguments: argparse.Namespace) -> bool:
    """Return whether the destination is known to exist: the broker counts its messages."""
    with suppress(RedeliveryError):
        options = client_of(arguments)
        url = destination_of(arguments, options)
        with registry.connect(url, registry.own_options(url, options)) as broker, broker.admin() as admin:
            admin.depth()
            return True
    return False


def conditions_of(arguments: argparse.Namespace) -> list[str]:
    """Return the conditions that the arguments give."""
    return [*arguments.where, *([] if arguments.group is None else [f"group={arguments.group}"])]


def selection_of(arguments: argparse.Namespace) -> Selection:
    """Return the selection that the arguments give."""
    where = Selection.parse(*conditions_of(arguments))
    return where.of(arguments.id) if arguments.id else where
