"""`redelivery places`: the places that `redelivery.toml` names."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from redelivery import places
from redelivery.base.secrets import redact_options, redact_url
from redelivery.cli.output import say, say_json


def add(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="the file that names places, in place of the redelivery.toml in this folder or above it",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print it as JSON")
    form.add_argument("--names", action="store_true", help="print the names alone, one on each line")
    parser.set_defaults(run=_places)


def _places(arguments: argparse.Namespace) -> int:
    found = places.known(arguments.config)
    if arguments.names:
        for name in found:
            say(name)
        return 0
    if arguments.json:
        path = None if found.path is None else str(found.path)
        say_json({"file": path, "places": {name: _as_json(place) for name, place in found.items()}}, indent=2)
        return 0
    if found.path is None:
        say(f"No {places.FILE} in this folder or above it.")
        return 0
    say(f"{found.path}")
    width = max(map(len, found), default=0)
    for name, place in found.items():
        sink = f"  sink {redact_url(place.sink)}" if place.sink else ""
        say(f"  {name:<{width}}  {redact_url(place.url)}{sink}")
    if not found:
        say("  It names no place.")
    return 0


def _as_json(place: places.Place) -> dict[str, Any]:
    said = {
        "url": redact_url(place.url),
        "sink": None if place.sink is None else redact_url(place.sink),
        "spec": None if place.spec is None else str(place.spec),
        "options": redact_options(place.options),
        "key": place.key,
        "subscription": place.subscription,
    }
    return {name: value for name, value in said.items() if value}
