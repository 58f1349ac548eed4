"""`redelivery run URL MODULE:HANDLER`: a subscription, from a terminal or a container.

SIGTERM and Ctrl-C stop it gracefully: leased messages are settled or released.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import signal
import sys
from dataclasses import asdict

from redelivery.cli.arguments import add_config, add_spec, spec_and_client
from redelivery.cli.output import HarmlessFormatter, say_json
from redelivery.errors import ConfigurationError
from redelivery.policy.breaker import Breaker
from redelivery.receiving.subscription import DEFAULT_NAME, Handler, Subscription


def add(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("url", help="where messages come from, or the name of a place in redelivery.toml")
    add_config(parser)
    parser.add_argument("handler", metavar="MODULE:HANDLER", help="a function of one redelivery.Message; may be async")
    add_spec(parser)
    parser.add_argument("--name", default=DEFAULT_NAME, help="the subscription's name in letters and metrics")
    parser.add_argument(
        "--own-copy",
        action="store_true",
        help="receive the subscription's own copy of each message, on brokers that have copies",
    )
    parser.add_argument("--workers", type=int, default=1, help="handlers side by side (default 1)")
    parser.add_argument(
        "--no-breaker",
        action="store_true",
        help="do not pause where all messages fail for one reason: each failure counts as the message's own",
    )
    parser.add_argument("--until-empty", action="store_true", help="end when nothing more arrives")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    lines = logging.StreamHandler()
    lines.setFormatter(HarmlessFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[lines])
    spec, client = spec_and_client(arguments)
    subscription = Subscription(
        arguments.url,
        _handler(arguments.handler),
        name=arguments.name,
        own_copy=arguments.own_copy,
        spec=spec,
        options=client,
        workers=arguments.workers,
        breaker=None if arguments.no_breaker else Breaker(),
    )
    previous = {number: signal.signal(number, lambda *_: subscription.stop()) for number in _SIGNALS}
    try:
        report = subscription.run(until_empty=arguments.until_empty)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    account = asdict(report) | {"delivery": report.delivery.to_dict()}
    say_json(account, indent=2)
    return 0


def _handler(name: str) -> Handler:
    """Return the function that `module:handler` names; modules are also searched for in the working folder."""
    module, sign, path = name.partition(":")
    if not sign or not module or not path:
        raise ConfigurationError(f"{name!r}: a handler is written MODULE:HANDLER, as in 'billing.handlers:charge'")
    if os.getcwd() not in sys.path:  # noqa: PTH109 - sys.path holds text
        sys.path.insert(0, os.getcwd())  # noqa: PTH109
    try:
        found: object = importlib.import_module(module)
    except ImportError as error:
        raise ConfigurationError(f"{name!r}: {module!r} cannot be imported: {error}") from error
    for part in path.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise ConfigurationError(f"{name!r}: {module!r} has no function {path!r}")
    return found


_SIGNALS = (signal.SIGINT, signal.SIGTERM)
