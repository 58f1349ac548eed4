"""`redelivery plan|apply|drift URL`: show, create and compare the objects that a delivery spec needs at a broker.

It decides nothing about a broker: `provisioning.py` does, with the plugin.
"""

from __future__ import annotations

import argparse
import math
import textwrap
from collections.abc import Iterator
from dataclasses import asdict

from redelivery import provisioning
from redelivery.base.urls import redact
from redelivery.cli.arguments import add_config, add_spec, add_subscription, destination_of, spec_and_client
from redelivery.cli.output import say, say_json
from redelivery.contract.broker import NativeObject
from redelivery.formats.specs import knative
from redelivery.provisioning import Provisioning

#: Exit status of `drift` where the broker differs from the spec.
DIFFERS = 1
_WIDTH = 80
_SIGNS = {"create": "+", "keep": " ", "differs": "!"}


def add_plan(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `plan`."""
    _add_shown(parser)
    parser.set_defaults(run=_plan)


def add_drift(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `drift`."""
    _add_shown(parser)
    parser.set_defaults(run=_drift)


def add_apply(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `apply`."""
    _add_place(parser)
    parser.set_defaults(run=_apply)


def _add_shown(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print it as JSON")
    parser.add_argument(
        "--reads", action="append", default=[], metavar="URL", help="what the job itself reads; may be repeated"
    )
    _add_place(parser)


def _add_place(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("url", help="the destination, or the name of a place in redelivery.toml")
    add_subscription(parser)
    add_spec(parser)
    add_config(parser)


def _found(arguments: argparse.Namespace) -> Provisioning:
    spec, client = spec_and_client(arguments)
    return provisioning.plan(destination_of(arguments, client), spec, options=client, reads=arguments.reads)


def _plan(arguments: argparse.Namespace) -> int:
    found = _found(arguments)
    if arguments.json:
        say_json(as_dict(found), indent=2)
    else:
        for line in as_text(found):
            say(line)
    return 0


def _drift(arguments: argparse.Namespace) -> int:
    found = _found(arguments)
    changed = [item for item in found.plan.objects if item.action != "keep"]
    if arguments.json:
        say_json(as_dict(found), indent=2)
    else:
        for line in [line for item in changed for line in _object(item)] or [f"{found.url} is as the spec wants it."]:
            say(line)
    return DIFFERS if changed else 0


def _apply(arguments: argparse.Namespace) -> int:
    spec, client = spec_and_client(arguments)
    status = provisioning.apply(destination_of(arguments, client), spec, options=client)
    say_json(knative.status_to_dict(status), indent=2)
    if status.dead_letter_sink_uri is None:
        say("The spec has no dead letter sink.", error=True)
    return 0


def as_dict(found: Provisioning) -> dict[str, object]:
    """Return a JSON-ready form of a plan."""
    return {
        "url": found.url,
        "drift": found.plan.drift,
        "objects": [asdict(item) for item in found.plan.objects],
        "status": knative.status_to_dict(found.plan.status),
        "fields": dict(found.fields),
        "support": {part: each.value for part, each in found.support.items()},
        "approximations": list(found.plan.approximations),
        "ends_within_seconds": None if math.isinf(found.ends_within) else found.ends_within,
        "warnings": [redact(each) for each in found.warnings],
    }


def as_text(found: Provisioning) -> Iterator[str]:
    """Return a plan for people, 80 columns wide unless names are longer."""
    yield f"{found.url}"
    for item in found.plan.objects:
        yield from _object(item)
    missing = sum(item.action == "create" for item in found.plan.objects)
    differing = sum(item.action == "differs" for item in found.plan.objects)
    yield f"{missing} to be made, {differing} that differ (never altered), of {len(found.plan.objects)}."
    sink = found.plan.status.dead_letter_sink_uri
    yield f"Dead letters go to {sink}" if sink else "No dead letter sink."
    end = "never by itself" if math.isinf(found.ends_within) else f"within {found.ends_within:,.0f} s"
    yield f"Where nothing is accepted any more, a task that writes ends {end}."
    for rows in (found.fields, {part: support.value for part, support in found.support.items()}):
        yield ""
        width = max(map(len, rows))
        for name, value in rows.items():
            indent = f"  {name:<{width}}  "
            yield from textwrap.wrap(
                value, max(_WIDTH, width + 30), initial_indent=indent, subsequent_indent=" " * len(indent)
            )
    for title, lines in (("Done otherwise", found.plan.approximations), ("See to", found.warnings)):
        if lines:
            yield ""
            yield f"{title}:"
        for line in lines:
            yield from textwrap.wrap(redact(line), _WIDTH, initial_indent="  - ", subsequent_indent="    ")


def _object(item: NativeObject) -> Iterator[str]:
    yield f"{_SIGNS[item.action]} {item.kind} {item.name}"
    different = {each.attribute: each for each in item.differences}
    for name, value in item.attributes.items():
        if name not in different:
            yield f"{_SIGNS[item.action]}     {name} = {value}"
    for each in item.differences:
        yield f"!     {each.attribute} = {each.found}, and should be {each.wanted}"
