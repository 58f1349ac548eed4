"""The options of the data source, all checked before anything is sent.

Spark lower-cases option names, so names are read in any case.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Literal, TypeAlias

from redelivery import registry
from redelivery.base.secrets import refuse_literal
from redelivery.base.urls import (
    has_scheme,
    is_reference,
    redact,
    redact_options,
    refuse_password,
    split_url,
    unknown,
)
from redelivery.contract.broker import BrokerPlugin
from redelivery.contract.hooks import GROUP
from redelivery.contract.spec import NATIVE, DeliverySpec
from redelivery.errors import ConfigurationError, InvalidSpec, UnknownOption
from redelivery.formats import signing
from redelivery.formats.specs import options as forms
from redelivery.sending import Bounds, Flow, support
from redelivery.sending.connector import prefixed
from redelivery.telemetry import context

ContentMode: TypeAlias = Literal["raw", "binary", "structured"]

#: CloudEvents attributes that may be columns; `extensions` is a map of any others.
ATTRIBUTES: Final = ("specversion", "type", "source", "subject", "time", "datacontenttype", "dataschema")
EXTENSIONS: Final = "extensions"
#: A map: how `data` and extensions are written in structured mode (json, string, base64), where the default is wrong.
ENCODINGS: Final = "encodings"

#: Options of both directions.
COMMON: Final[Mapping[str, str]] = {
    "url": "where rows go, or whose dead letters are read; `.save(url)` and `.load(url)` say the same",
    "sharedMount": "true: this one-host destination lies on a mount that all hosts share",
    registry.STRICT: "true: refuse credentials over plain text to a host that is not local, and verification that is "
    "switched off, at the destination and at every sink; else they are warned of",
}
#: Options of a write, besides those of the delivery spec (`redelivery.formats.specs.options`).
WRITE: Final[Mapping[str, str]] = {
    **COMMON,
    "contentMode": "raw, binary or structured; unset: binary if the columns `type` and `source` exist, else raw",
    "requireAttributes": "comma list of CloudEvents attributes that must not be null",
    "writeId": "names this batch write, so that running it again gives every row the same id",
    "traceparent": "the span that asks for this write, as W3C Trace Context writes it: the spans of its tasks "
    "belong to its trace (`deliver()` takes the current span by itself)",
    "reportPath": "takes the report, as JSON: a file, or an existing folder (a file each run), at the driver",
    "preflight": "true (default): before any task the driver opens destination and sinks once, and fails at once if "
    "they can never work; false: each task finds out by itself",
    "ordering": "key: rows of one key in their order, as they lie in a partition; none (default): in any order",
    "parkSuccessors": "true: with ordering=key, rows behind a dead-lettered one of their key are dead-lettered too",
    "maxRecordsPerSecond": "of one task: the job sends at most this times the tasks that run at once",
    "maxInFlightRecords": "records that a task may hold: at the broker, waiting, or on their way to a sink (200000)",
    "maxInFlightBytes": "bytes that these may have (default 64 MiB)",
    "maxWaitingRecords": "records of a task that may wait for their next attempt (default 10000)",
    "removeRedelivered": "true: rows are mended letters, with their column `_position`: once the whole write has "
    "succeeded, the driver removes the letters, except those of which a row was skipped",
    "redeliveredFrom": "with removeRedelivered: URL of the place that the letters were read from, if it is not the "
    "native one of the destination; its client options are `sink.<broker>.<name>`",
}
#: Options of a read.
READ: Final[Mapping[str, str]] = {
    **COMMON,
    "deadLetters": "true: read the dead letters (there is nothing else to read yet)",
    "deadLetterSink": "the sink's own URL, where letters went to a sink rather than to the native place",
    "run": "only the letters of this run (`DeliveryReport.run`)",
    "since": "only letters that were dead-lettered at this time or later: ISO 8601 with a time zone, as in "
    "`2026-01-31T12:00:00Z`; letters whose time is unknown are read too",
    "until": "only letters that were dead-lettered before this time; as `since`",
    "where": "only letters that meet this condition of the command line, as in `code=TOO_LARGE` or `reason~timeout`; "
    "of several conditions, one a line, all must hold",
    "columns": "only these columns, separated by commas, as in `key, _error.code`: what only "
    "others need is not decoded",
    "minPartitions": "by about how many tasks the letters are read at least, where the broker can split them (twice "
    "the CPUs of the driver's machine, at least 8)",
    "letterKey": "references of the keys that letters were signed with, separated by commas: headers of unsigned "
    "letters are not believed, and the targets of signed letters become columns",
    "allowTargets": "which targets of letters become columns of a row, and so choose where it is written: names or "
    "shell patterns, separated by commas (`column=value` for a broker's column that routes)",
}
#: Options of a stream of dead letters, besides those of a read.
READ_STREAM: Final[Mapping[str, str]] = {
    "startingLetters": "of a new query: earliest (default), so that it begins with the letters that exist, or latest",
    "maxLettersPerTrigger": "about how many letters a micro-batch has at most (no limit)",
}
#: A cluster has at least so many cores.
_LEAST_READERS: Final = 8
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
#: `sink.<broker>.<name>`: client options of the sinks.
SINK_PREFIX: Final = "sink."


@dataclass(frozen=True, slots=True, kw_only=True)
class LettersPlace:
    """A place of dead letters.

    Attributes:
        url: a destination, whose native place it is; with `direct` the exact place.
        client: client options, with their prefix.
    """

    url: str
    direct: bool
    client: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteSettings:
    """The settings of a write; plain data that travels to the workers.

    Attributes:
        url: where rows go.
        spec: how rows are delivered; its sinks hold their client options.
        client: client options of the destination, with their prefix; secrets are references.
        content_mode: None: derived from the columns.
        require_attributes: CloudEvents attributes that must not be null.
        write_id: names the write across reruns.
        report_path: where the report is written.
        traceparent: the span that asked for the write; None: none is known.
        bounds: how much a task may hold in memory.
        flow: in which order, and how fast, a task sends.
        configs: all options in the form that may be shown.
        shared_mount: a one-host destination may be used on a cluster.
        preflight: the driver opens destination and sinks before any task does.
        redelivered: where the letters are that the rows redeliver, to be removed; None: the rows are not letters.
    """

    url: str
    spec: DeliverySpec = field(default_factory=DeliverySpec)
    client: Mapping[str, str] = field(default_factory=dict)
    content_mode: ContentMode | None = None
    require_attributes: tuple[str, ...] = ()
    write_id: str | None = None
    report_path: str | None = None
    traceparent: str | None = None
    bounds: Bounds = field(default_factory=Bounds)
    flow: Flow = field(default_factory=Flow)
    configs: Mapping[str, str] = field(default_factory=dict)
    shared_mount: bool = False
    preflight: bool = True
    redelivered: LettersPlace | None = None

    @property
    def plugin(self) -> BrokerPlugin:
        """Return the plugin that opens the destination."""
        return registry.installed().by_url(self.url)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSettings:
    """The settings of a read of dead letters.

    Attributes:
        url: the place that is read: the destination's native queue, or with `direct` the exact place that the URL
            names.
        client: client options, with their prefix.
        run: only letters of this run.
        since_ms, until_ms: only letters that were dead-lettered at this time or later, and before that time,
            milliseconds since the epoch, or at an unknown time.
        where: only letters that meet these conditions of a `Selection`.
        columns: names of the columns, `_error.<name>` for a part; empty: all.
        readers: by how many tasks the letters are read where nothing else decides.
        allow_targets: targets of letters that may become columns.
        keys: references of the keys that letters were signed with.
        shared_mount: a one-host place may be used on a cluster.
        from_latest: a new stream begins behind the letters that exist.
        per_trigger: letters of a micro-batch; None: all.
    """

    url: str
    direct: bool = False
    client: Mapping[str, str] = field(default_factory=dict)
    run: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    where: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    readers: int = 8
    allow_targets: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    shared_mount: bool = False
    from_latest: bool = False
    per_trigger: int | None = None


def read_write_options(options: Mapping[str, str], *, spec: DeliverySpec | None = None) -> WriteSettings:
    """Check the options of a write.

    Args:
        options: names in any case.
        spec: given as an object; then no option may set a part of it.

    Raises:
        ConfigurationError: an option is unknown (the nearest known one is named), malformed or missing.
    """
    if spec is not None and not isinstance(spec, DeliverySpec):
        raise InvalidSpec(
            f"spec must be a DeliverySpec, not {type(spec).__name__}; or give its fields as options: retry=3"
        )
    own, spec_options, client, sink_client = _sort(options, WRITE, with_spec=True)
    url = _url(own)
    plugin = registry.installed().by_url(url)
    if spec is not None and spec_options:
        said = ", ".join(sorted(spec_options))
        raise InvalidSpec(f"the delivery spec is given twice: as an object, and by the options {said}")
    spec = forms.read(spec_options) if spec is None else spec
    client = _client_options(url, plugin, client, own, known=_known(WRITE, plugin))
    if not plugin.capabilities.send:
        raise ConfigurationError(f"{plugin.name!r} destinations cannot be written to; nothing was sent")
    redelivered = _redelivered(url, client, sink_client, own)
    return WriteSettings(
        url=url,
        spec=_with_sinks(spec, plugin, sink_client, redelivered),
        client=client,
        content_mode=_content_mode(own.get("contentMode")),
        require_attributes=_attribute_names(own.get("requireAttributes", "")),
        write_id=_write_id(own.get("writeId")),
        report_path=_report_path(own.get("reportPath")),
        traceparent=_traceparent(own.get("traceparent")),
        bounds=Bounds(
            in_flight_records=_count(own, "maxInFlightRecords", Bounds().in_flight_records),
            in_flight_bytes=_count(own, "maxInFlightBytes", Bounds().in_flight_bytes),
            waiting_records=_count(own, "maxWaitingRecords", Bounds().waiting_records),
        ),
        flow=_flow(own),
        configs=redact_options({**own, **spec_options, **client, **sink_client}),
        shared_mount=_flag(own, "sharedMount"),
        preflight=_flag(own, "preflight", default="true"),
        redelivered=redelivered,
    )


def read_read_options(options: Mapping[str, str], *, stream: bool = True) -> ReadSettings:
    """Check the options of a read, or of a stream of letters. Raises as `read_write_options`."""
    known_options = {**READ, **READ_STREAM} if stream else READ
    own, _, client, sink_client = _sort(options, known_options, with_spec=False)
    if not _flag(own, "deadLetters"):
        raise ConfigurationError(
            'only dead letters can be read: say .option("deadLetters", True); a queue is consumed by a subscription'
        )
    direct = "deadLetterSink" in own and own["deadLetterSink"] != NATIVE
    url = own["deadLetterSink"] if direct else _url(own)
    _check_url(url)
    plugin = registry.installed().by_url(url)
    if not plugin.capabilities.browse:
        raise ConfigurationError(f"{plugin.name!r} places cannot be browsed, so their dead letters cannot be read")
    mine = {**client, **{name.removeprefix(SINK_PREFIX): value for name, value in sink_client.items()}}
    known = _known(known_options, plugin)
    return ReadSettings(
        url=url,
        direct=direct,
        client=_client_options(url, plugin, mine, own, known=known),
        run=own.get("run"),
        since_ms=_moment_ms(own, "since"),
        until_ms=_moment_ms(own, "until"),
        where=_conditions(own.get("where", "")),
        columns=_names(own.get("columns", "")),
        readers=_count(own, "minPartitions", max(_LEAST_READERS, 2 * (os.cpu_count() or 1))),
        keys=signing.references(own.get("letterKey")),
        allow_targets=_names(own.get("allowTargets", "")),
        shared_mount=_flag(own, "sharedMount"),
        from_latest=_starts_from_latest(own.get("startingLetters", "earliest")),
        per_trigger=_count(own, "maxLettersPerTrigger", 1) if "maxLettersPerTrigger" in own else None,
    )


def _sort(
    options: Mapping[str, str], known: Mapping[str, str], *, with_spec: bool
) -> tuple[dict[str, str], dict[str, str], dict[str, str], dict[str, str]]:
    """Divide options by owner: ours, the spec's, the destination's client's, the sinks' clients'."""
    spelling = {name.lower(): name for name in known}
    spec_spelling = {name.lower(): name for name in forms.OPTIONS}
    own: dict[str, str] = {}
    spec: dict[str, str] = {}
    client: dict[str, str] = {}
    sink_client: dict[str, str] = {}
    seen: set[str] = set()
    for name, value in sorted(options.items(), key=lambda item: item[0].lower() not in {"url", "path"}):
        lower = "url" if name.lower() == "path" else name.lower()
        if lower in seen:
            raise ConfigurationError(
                f"the option {name!r} is given twice" + (" (path is url)" if lower == "url" else "")
            )
        seen.add(lower)
        if lower in spelling:
            own[spelling[lower]] = str(value)
        elif with_spec and forms.is_spec_option(name):
            spec[spec_spelling.get(lower, name)] = str(value)
        elif lower.startswith(SINK_PREFIX):
            sink_client[lower[: len(SINK_PREFIX)] + name[len(SINK_PREFIX) :]] = str(value)
        elif registry.is_client_option(name) and not lower.startswith(f"{GROUP}."):
            client[name] = str(value)
        else:
            if "url" in own:
                _check_url(own["url"])  # a plugin that is not installed is the reason, and comes first
            _refuse_elsewhere(name)
            everything = [*known, *(forms.OPTIONS if with_spec else ())]
            raise unknown("option", name, everything)
    return own, spec, client, sink_client


def _refuse_elsewhere(name: str) -> None:
    """Report an unknown option that another operation, or another plugin, knows."""
    for options, operation in ((READ, "reading dead letters"), (WRITE, "writing"), (READ_STREAM, "streams of letters")):
        if name.lower() in map(str.lower, options):
            raise UnknownOption(f"unknown option {name!r} here: it is an option of {operation}")


def _known(own: Mapping[str, str], plugin: BrokerPlugin) -> list[str]:
    return [*own, *forms.OPTIONS, *(f"{plugin.name}.{name}" for name in plugin.options)]


def _url(own: Mapping[str, str]) -> str:
    url = own.get("url", "")
    if not url:
        raise ConfigurationError(
            'no destination: say .option("url", "<scheme>:..."); `redelivery plugins` lists the schemes'
        )
    _check_url(url)
    return url


def _check_url(url: str) -> None:
    refuse_password(url)
    registry.installed().by_url(url)
    split_url(url, several_hosts=True)


def _client_options(
    url: str, plugin: BrokerPlugin, client: Mapping[str, str], own: Mapping[str, str], *, known: Iterable[str]
) -> dict[str, str]:
    """Check one plugin's client options, and the URL with them, as far as possible without the secrets.

    Returns:
        The client options, and those of our options that apply to every plugin.
    """
    for name in client:
        prefix = name.partition(".")[0].lower()
        if prefix in registry.installed().plugins and prefix != plugin.name:
            raise UnknownOption(
                f"unknown option {name!r} here: it is one of the plugin {prefix!r}, and {redact(url)} is opened by "
                f"{plugin.name!r}; for a sink it is written {SINK_PREFIX}{name}"
            )
        if prefix != plugin.name:
            raise unknown("option", name, known)
    checked = registry.client_options(plugin, client)
    _refuse_literal_secrets(plugin, checked)
    strict = {registry.STRICT: "true"} if _flag(own, registry.STRICT) else {}
    given = {f"{plugin.name}.{name}": value for name, value in checked.items()} | strict
    if not any(is_reference(value) for value in checked.values()):
        registry.connect(url, given).close()  # no I/O by contract: it only checks
    return given


def _refuse_literal_secrets(plugin: BrokerPlugin, client: Mapping[str, str]) -> None:
    for name, value in client.items():
        refuse_literal(f"{plugin.name}.{name}", value)


def _redelivered(
    url: str, client: Mapping[str, str], sink_client: Mapping[str, str], own: Mapping[str, str]
) -> LettersPlace | None:
    """Return where the letters are that the rows redeliver. Raises ConfigurationError."""
    if not _flag(own, "removeRedelivered"):
        if "redeliveredFrom" in own:
            raise ConfigurationError("redeliveredFrom says whose letters are removed, so it needs removeRedelivered")
        return None
    place = own.get("redeliveredFrom", NATIVE)
    direct = place != NATIVE
    if direct:
        _check_url(place)
    plugin = registry.installed().by_url(place if direct else url)
    if not plugin.capabilities.remove or not (direct or plugin.capabilities.dead_letter):
        raise ConfigurationError(f"removeRedelivered: {plugin.name!r} has no dead letters here that could be removed")
    if not direct:
        return LettersPlace(url=url, direct=False, client=client)
    prefix = f"{SINK_PREFIX}{plugin.name}."
    mine = {name.removeprefix(SINK_PREFIX): text for name, text in sink_client.items() if name.startswith(prefix)}
    known = _known(WRITE, plugin)
    return LettersPlace(url=place, direct=True, client=_client_options(place, plugin, mine, own, known=known))


def _with_sinks(
    spec: DeliverySpec,
    destination: BrokerPlugin,
    sink_client: Mapping[str, str],
    redelivered: LettersPlace | None,
) -> DeliverySpec:
    """Return the spec, each sink with the client options of its plugin. Raises ConfigurationError."""
    support.check(spec, destination.capabilities, destination.name)
    shared = redelivered.client if redelivered is not None and redelivered.direct else {}
    unused = {name: value for name, value in sink_client.items() if name.removeprefix(SINK_PREFIX) not in shared}
    sinks = []
    for sink in spec.dead_letter_sink:
        if sink.uri == NATIVE:
            plugin = destination
            if not plugin.capabilities.dead_letter:
                raise ConfigurationError(
                    f"deadLetterSink: {plugin.name!r} destinations have no native dead letter place; name a URL"
                )
        elif sink.ref is not None or not has_scheme(sink.uri):
            plugin = destination  # another place there, by its own name
        else:
            refuse_password(sink.uri)
            plugin = registry.installed().by_url(sink.uri)
        prefix = f"{SINK_PREFIX}{plugin.name}."
        mine = {name: value for name, value in sink_client.items() if name.lower().startswith(prefix)}
        unused = {name: value for name, value in unused.items() if name not in mine}
        shared = registry.client_options(plugin, {n.removeprefix(SINK_PREFIX): value for n, value in mine.items()})
        checked = registry.client_options(plugin, prefixed(sink.options, plugin.name))
        for name in shared.keys() & checked.keys():
            raise ConfigurationError(
                f"the option '{prefix}{name}' is given twice: once for all sinks, once for this one"
            )
        checked |= shared
        _refuse_literal_secrets(plugin, checked)
        sinks.append(replace(sink, options={f"{plugin.name}.{name}": value for name, value in checked.items()}))
    for name in unused:
        raise ConfigurationError(f"the option {name!r} is for a sink that deadLetterSink does not name")
    return replace(spec, dead_letter_sink=tuple(sinks))


def _content_mode(text: str | None) -> ContentMode | None:
    if text is None:
        return None
    modes: dict[str, ContentMode] = {"raw": "raw", "binary": "binary", "structured": "structured"}
    if text.lower() not in modes:
        raise unknown("contentMode", text, modes)
    return modes[text.lower()]


def _attribute_names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip().lower() for name in text.split(",") if name.strip())
    for name in names:
        if name not in (*ATTRIBUTES, "id"):
            raise unknown("CloudEvents attribute in requireAttributes", name, (*ATTRIBUTES, "id"))
    return names


def _write_id(text: str | None) -> str | None:
    if text is not None and not re.fullmatch(r"[!-~]{1,100}", text):
        raise ConfigurationError(f"writeId must be 1 to 100 printable ASCII characters without spaces, not {text!r}")
    return text


def _traceparent(text: str | None) -> str | None:
    if text is not None and context.parse(text) is None:
        raise ConfigurationError(
            "traceparent must be 00-<32 hexadecimal digits>-<16>-<2>, as W3C Trace Context has it, "
            f"not {redact(text)!r}"
        )
    return text


def _report_path(text: str | None) -> str | None:
    if text is None:
        return None
    path = Path(text)
    if not path.absolute().parent.is_dir():
        raise ConfigurationError(
            f"reportPath must name a folder, or a file in an existing folder, on the driver's machine: {text}"
        )
    return str(path.absolute())


def _flow(own: Mapping[str, str]) -> Flow:
    ordering = own.get("ordering", "none").lower()
    if ordering not in ("none", "key"):
        raise unknown("ordering", own["ordering"], ("none", "key"))
    park = _flag(own, "parkSuccessors")
    if park and ordering != "key":
        raise ConfigurationError("parkSuccessors=true parks what follows by key, so it needs ordering=key")
    rate = own.get("maxRecordsPerSecond")
    if rate is not None and (not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,6})?", rate) or float(rate) == 0):
        raise ConfigurationError(f"maxRecordsPerSecond must be a number above 0, not {redact(rate)!r}")
    return Flow(
        ordering="key" if ordering == "key" else "none",
        park_successors=park,
        rows_per_second=None if rate is None else float(rate),
    )


def _count(own: Mapping[str, str], name: str, default: int) -> int:
    text = own.get(name)
    if text is None:
        return default
    if not re.fullmatch(r"[0-9]{1,15}", text) or int(text) == 0:
        raise ConfigurationError(f"{name} must be a whole number above 0, not {text!r}")
    return int(text)


def _conditions(text: str) -> tuple[str, ...]:
    """Return the conditions of a text, one a line. Raises ConfigurationError."""
    conditions = tuple(each for each in text.splitlines() if each.strip())
    if conditions:
        from redelivery.deadletters.selection import Selection  # noqa: PLC0415 - a write has none

        Selection.parse(*conditions)
    return conditions


def _names(text: str) -> tuple[str, ...]:
    return tuple(each.strip() for each in text.split(",") if each.strip())


def _moment_ms(own: Mapping[str, str], name: str) -> int | None:
    """Return a time in milliseconds since the epoch; None where it is not given."""
    text = own.get(name)
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise ConfigurationError(f"{name} must be ISO 8601 with a time zone, as in 2026-01-31T12:00:00Z, not {text!r}")
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def _starts_from_latest(text: str) -> bool:
    if text.lower() not in ("earliest", "latest"):
        raise unknown("startingLetters", text, ("earliest", "latest"))
    return text.lower() == "latest"


def _flag(own: Mapping[str, str], name: str, *, default: Literal["true", "false"] = "false") -> bool:
    text = own.get(name, default).lower()
    if text not in ("true", "false"):
        raise ConfigurationError(f"{name} must be true or false, not {redact(own[name])!r}")
    return text == "true"
