"""`redelivery watch [URL-or-PLACE...]`: alerts and metrics of dead letter queues."""

from __future__ import annotations

import argparse
import logging
import signal
from pathlib import Path
from typing import Final

from redelivery import places
from redelivery.base.clock import SystemClock
from redelivery.cli.arguments import add_client, client_of
from redelivery.cli.output import SHOWN_TO_ALL, HarmlessFormatter, say
from redelivery.errors import ConfigurationError

#: Exit status of `--once`: an alert is active.
ALERT: Final = 1
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
#: Arguments that have the names of keys of the file.
_KEYS: Final = (
    "interval",
    "listen",
    "webhook",
    "webhook-form",
    "older-than",
    "growth",
    "new-group",
    "look",
)


def add(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument(
        "places",
        nargs="*",
        metavar="URL-or-PLACE",
        help="a destination, or the name of a place in redelivery.toml (default: all places there)",
    )
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="the file that names places, in place of the redelivery.toml in this folder or above it",
    )
    parser.add_argument("--interval", metavar="TIME", help="the time between two looks at a place (default 30s)")
    parser.add_argument(
        "--listen", metavar="HOST:PORT", help="where to serve /metrics and /healthz, or off (default 127.0.0.1:9464)"
    )
    parser.add_argument("--once", action="store_true", help="look once; exit with 1 if an alert is active, else 0")
    parser.add_argument("--webhook", metavar="REFERENCE", help="env:NAME or file:PATH of the URL that alerts go to")
    parser.add_argument(
        "--webhook-form", metavar="FORM", help="what is posted to the webhook: json (default), slack or alertmanager"
    )
    parser.add_argument("--older-than", metavar="TIME", help="alert when the oldest dead letter has this age, as in 1h")
    parser.add_argument(
        "--growth", metavar="COUNT/TIME", help="alert when this many arrive within this time, as in 100/5m"
    )
    parser.add_argument(
        "--new-group",
        action=argparse.BooleanOptionalAction,
        help="alert when letters arrive of a group that the place has not had before",
    )
    parser.add_argument(
        "--look",
        action=argparse.BooleanOptionalAction,
        help="look at letters even where a look hides them from other readers and counts as a delivery of each",
    )
    parser.add_argument(
        "--state",
        type=Path,
        metavar="FOLDER",
        help="the folder that remembers groups and active alerts (default: beside the journals)",
    )
    add_client(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    try:
        from redelivery.watch import metrics, serving  # noqa: PLC0415 - the extra may be missing
    except ImportError as error:
        if not (error.name or "").startswith("prometheus_client"):
            raise
        raise ConfigurationError("watch needs prometheus-client: pip install 'redelivery[watch]'") from None
    from redelivery.watch.settings import Given, settings  # noqa: PLC0415 - with the others
    from redelivery.watch.watcher import Watch  # noqa: PLC0415
    from redelivery.watch.webhook import Webhook, target  # noqa: PLC0415

    values = {key: getattr(arguments, key.replace("-", "_")) for key in _KEYS}
    given = Given(names=arguments.places, values=values, options=client_of(arguments), once=arguments.once)
    said = settings(given, places.known(arguments.config), shown=SHOWN_TO_ALL)
    _log_lines()
    clock = SystemClock()
    webhook = None if said.webhook is None else Webhook(target(said.webhook), said.form, clock)
    watch = Watch(said.places, clock, interval=said.interval.total_seconds(), webhook=webhook, folder=arguments.state)
    if webhook is not None:
        webhook.start()
    if arguments.once:
        return ALERT if watch.once() else 0
    previous = {number: signal.signal(number, lambda *_: watch.stop()) for number in _SIGNALS}
    try:
        if said.listen is None:
            watch.run()
            return 0
        results = None if webhook is None else lambda: webhook.results
        collector = metrics.Metrics(watch.figures, results, clock)
        with serving.Server(*said.listen, collector, watch.healthy) as server:
            say(f"redelivery: watching {len(said.places)} places; metrics at {server.url}", error=True)
            watch.run()
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    return 0


def _log_lines() -> None:
    lines = logging.StreamHandler()
    lines.setFormatter(HarmlessFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    lines.addFilter(is_told)
    logging.basicConfig(level=logging.INFO, handlers=[lines])


def is_told(record: logging.LogRecord) -> bool:
    """Whether a record of the log is shown: clients tell of a broker that is down at each look, the watch once."""
    ours = record.name.partition(".")[0] == "redelivery"
    return record.name.startswith("redelivery.watch") or (ours and record.levelno >= logging.WARNING)
