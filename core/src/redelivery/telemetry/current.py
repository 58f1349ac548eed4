"""Finds the program's OpenTelemetry SDK: `current` returns None where it has none, and imports nothing then.

A library never sets an SDK up. Only processes that are ours do that (`configure`: Spark's tasks and commits, the
command line), and only where the usual variables of OpenTelemetry ask for it.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from redelivery.telemetry.guard import harmless

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter, MeterProvider
    from opentelemetry.trace import Tracer, TracerProvider

log = logging.getLogger("redelivery.telemetry")

_NAME: Final = "redelivery"
#: The API's own classes do nothing: their modules begin so.
_NOTHING: Final = ("opentelemetry.trace", "opentelemetry.metrics")
#: Name the provider that the API loads by itself.
_PROVIDERS: Final = ("OTEL_PYTHON_TRACER_PROVIDER", "OTEL_PYTHON_METER_PROVIDER")
#: Ask for an SDK that exports.
_EXPORTERS: Final = ("OTEL_TRACES_EXPORTER", "OTEL_METRICS_EXPORTER")
_CONFIGURATORS: Final = "opentelemetry_configurator"
#: How long a task or commit waits for its spans to be exported, in seconds.
FLUSH: Final = 3.0


@dataclass(frozen=True, slots=True)
class Telemetry:
    """What records; at least one of both.

    Attributes:
        tracer: makes spans; None: nothing records them.
        meter: makes instruments; None: nothing records them.
        providers: of both.
    """

    tracer: Tracer | None
    meter: Meter | None
    providers: tuple[Any, ...]

    def flush(self, seconds: float = FLUSH) -> None:
        """Export what is recorded, waiting at most so long. Never raises: telemetry must not fail a job."""
        # On its own thread: not every processor keeps the timeout that it is given.
        thread = threading.Thread(target=self._flush, args=(seconds,), name="redelivery-telemetry", daemon=True)
        thread.start()
        thread.join(seconds)
        if thread.is_alive():
            log.warning("spans or metrics were not exported within %g s", seconds)

    def _flush(self, seconds: float) -> None:
        for provider in self.providers:
            try:
                getattr(provider, "force_flush", lambda _: None)(int(seconds * 1000))
            except Exception as error:  # noqa: BLE001 - of an exporter
                log.warning("spans or metrics could not be exported: %s", type(error).__name__)


#: The one of `using`, in place of the program's own.
_given: Telemetry | None = None
_found: tuple[tuple[Any, Any], Telemetry | None] | None = None
#: The process that `configure` has looked at.
_configured: int | None = None


@harmless(None)
def current() -> Telemetry | None:
    """Return what records in this process; None where nothing does. To be asked once per task, not per row."""
    global _found  # noqa: PLW0603 - one SDK per process, as OpenTelemetry has it
    if _given is not None:
        return _given
    if not _may_record():
        return None
    from opentelemetry import metrics, trace  # noqa: PLC0415 - it is imported already, or named by a variable

    providers = trace.get_tracer_provider(), metrics.get_meter_provider()
    if _found is None or _found[0] != providers:
        _found = providers, _of(*providers)
    return _found[1]


def _may_record() -> bool:
    """Whether there may be an SDK. Without one, nothing of OpenTelemetry is imported for it."""
    return any(name in sys.modules for name in _NOTHING) or any(name in os.environ for name in _PROVIDERS)


def _of(tracer_provider: TracerProvider, meter_provider: MeterProvider) -> Telemetry | None:
    tracer: Tracer | None = None
    meter: Meter | None = None
    if not _does_nothing(tracer_provider):
        tracer = tracer_provider.get_tracer(_NAME)
        tracer = None if _does_nothing(tracer) else tracer
    if not _does_nothing(meter_provider):
        meter = meter_provider.get_meter(_NAME)
        meter = None if _does_nothing(meter) else meter
    providers = tuple(each for each, used in ((tracer_provider, tracer), (meter_provider, meter)) if used is not None)
    return Telemetry(tracer, meter, providers) if providers else None


def _does_nothing(thing: object) -> bool:
    return type(thing).__module__.startswith(_NOTHING)


@contextlib.contextmanager
def using(
    tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None
) -> Iterator[Telemetry]:
    """Use these providers in place of the program's, in the whole process, for as long as the context lasts."""
    global _given  # noqa: PLW0603 - see `current`
    from opentelemetry import metrics, trace  # noqa: PLC0415 - see `current`

    found = _of(tracer_provider or trace.NoOpTracerProvider(), meter_provider or metrics.NoOpMeterProvider())
    before, _given = _given, found or Telemetry(None, None, ())
    try:
        yield _given
    finally:
        _given = before


def configure() -> None:
    """Set up the SDK in a process of ours, where the variables of OpenTelemetry ask for it. Never raises.

    `OTEL_TRACES_EXPORTER` or `OTEL_METRICS_EXPORTER` names an exporter, and the program has set up nothing. The
    configurator of the installed distribution is used, else the SDK's own. Does nothing the second time.
    """
    global _configured  # noqa: PLW0603 - see `current`
    if _configured == os.getpid():
        return
    _configured = os.getpid()
    wanted = any(os.environ.get(name, "none").strip().lower() not in {"", "none"} for name in _EXPORTERS)
    if not wanted or os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true" or current() is not None:
        return
    try:
        _configurator()().configure()
    except Exception as error:  # noqa: BLE001 - a missing exporter must not fail a job
        log.warning(
            "%s: spans and metrics are not recorded: %s: %s; install opentelemetry-sdk and the exporter",
            " and ".join(name for name in _EXPORTERS if name in os.environ),
            type(error).__name__,
            error,
        )


def _configurator() -> Any:
    from importlib.metadata import entry_points  # noqa: PLC0415 - takes long to import

    wanted = os.environ.get("OTEL_PYTHON_CONFIGURATOR")
    for each in entry_points(group=_CONFIGURATORS):
        if wanted is None or each.name == wanted:
            return each.load()
    return importlib.import_module("opentelemetry.sdk._configuration")._OTelSDKConfigurator  # noqa: SLF001 - see `configure`
