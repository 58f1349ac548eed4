"""`redelivery ui`: the operator's page, on this machine."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from redelivery import places
from redelivery.base.secrets import refuse_password
from redelivery.base.urls import redact
from redelivery.cli.arguments import add_client, client_of
from redelivery.cli.output import SHOWN_TO_ALL, say
from redelivery.errors import ConfigurationError

_NEEDS: Final = ("starlette", "jinja2", "uvicorn")
_ALLOWED: Final = ("redrive", "edit", "park", "purge")


def add(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument(
        "place",
        nargs="*",
        metavar="PLACE",
        help="a place of redelivery.toml by its name, or a destination's URL (default: all places of redelivery.toml)",
    )
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="the file that names places, in place of the redelivery.toml in this folder or above it",
    )
    add_client(parser)
    parser.add_argument(
        "--port", type=int, default=0, metavar="N", help="the port on 127.0.0.1 (default: any free port)"
    )
    parser.add_argument(
        "--allow",
        type=lambda text: [each.strip() for each in text.split(",") if each.strip()],
        default=[],
        metavar="WHAT",
        help=f"what the page may do, with commas between: {', '.join(_ALLOWED)} (default: nothing, it only shows)",
    )
    parser.add_argument(
        "--mask",
        action="append",
        default=[],
        metavar="PATTERN",
        help="hide what this regular expression (RE2) matches in bodies, headers and keys; may be repeated",
    )
    parser.add_argument("--no-browser", action="store_true", help="only print the URL")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    missing = [name for name in _NEEDS if find_spec(name) is None]
    if missing:
        raise ConfigurationError(f"the page needs {', '.join(missing)}: pip install 'redelivery[ui]'")
    from redelivery.ui.page import Settings  # noqa: PLC0415 - of the extra
    from redelivery.ui.server import serve  # noqa: PLC0415
    from redelivery.ui.source import Source, slugs  # noqa: PLC0415

    found = _places(arguments.place, arguments.config, client_of(arguments))
    names = slugs(each.name for each in found)
    sources = [
        Source(
            slug=slug,
            name=each.name,
            url=each.url,
            sink=each.sink,
            options=each.options,
            key=each.key,
            subscription=each.subscription,
            spec=each.spec,
        )
        for slug, each in zip(names, found, strict=True)
    ]
    settings = Settings(sources=sources, allow=frozenset(arguments.allow), masks=arguments.mask)
    serve(settings, port=arguments.port, browser=not arguments.no_browser, say=say)
    return 0


def _places(named: list[str], config: Path | None, options: Mapping[str, str]) -> list[places.Place]:
    """Return the places that are named; without names, all of the configuration file. Options are those of URLs."""
    known = places.known(config)
    if not named:
        if not known:
            raise ConfigurationError(f"no place: name a destination's URL, or write places into {places.FILE}")
        return list(known.values())
    found = []
    for each in named:
        if places.is_name(each):
            found.append(known.named(each))
        else:
            refuse_password(each, shown=SHOWN_TO_ALL)
            found.append(places.Place(name=redact(each), url=each, options=options))
    return found
