"""Reads and writes `deadLetterSink`: Knative's destination, our chain of them, and their text in an option.

A destination is `{uri}`, `{ref: {apiVersion, kind, name, namespace}}`, or both: then the uri is relative to what the
ref resolves to. Ours beyond that: plain text stands for `{uri}`; a list of destinations is a chain, tried in turn;
`options` holds the sink's own client settings, spelled as the client spells them (Knative's `CACerts` and `audience`
stand for two of them); `type` is the one under which events are reposted there; the uri `native` is the destination's
own dead letter queue; a uri without a scheme and without a ref names a sibling of the job's destination, another queue
or topic at the same broker.

Sentences begin after the field's name; errors never quote options.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from redelivery.base.durations import shown
from redelivery.base.urls import scheme_of, unknown
from redelivery.contract.spec import NATIVE, Ref, Sink
from redelivery.errors import InvalidSpec, InvalidURL
from redelivery.formats.specs.field_types import as_text

_SPACE_OR_CONTROL: Final = re.compile(r"[\s\x00-\x1f\x7f]")
_NO_NAMES: Final = ("true", "false", "yes", "no", "none", "null")
#: Knative's fields of a destination that concern the client, and the option that each is.
_CLIENT: Final = {"CACerts": "ssl.ca.pem", "audience": "audience"}
_SINK: Final = ("uri", "ref", "options", "type", *_CLIENT)
_REF: Final = {"kind": "kind", "name": "name", "apiVersion": "api_version", "namespace": "namespace"}
_NEEDED: Final = ("kind", "name")


def read_text(value: str) -> tuple[Sink, ...]:
    """Return the sinks in an option: one URL or name; several URLs separated by spaces; or JSON, as Knative writes it.

    Spaces separate them because commas are part of some brokers' URLs; a space within a URL is written %20.

    Raises:
        InvalidSpec, UnknownOption
    """
    if value.startswith(("{", "[")):
        from redelivery.formats.specs import text  # noqa: PLC0415 - with yaml, which most options do without

        return read(text.load(value))
    uris = value.split()
    if len(uris) == 1 and _is_slip(uris[0]):
        raise InvalidSpec(
            f"{shown(uris[0])} would be a queue of this name beside the destination; write 'native' for the "
            "destination's own dead letter queue, leave the option out for no sink, or write the URL of that queue"
        )
    if not uris:
        raise InvalidSpec(
            "must name a sink: 'native', a URL, or several URLs with spaces between; leave it out for none"
        )
    for uri in uris:
        if len(uris) > 1 and uri != NATIVE and not _absolute(uri):
            raise InvalidSpec(
                f"{shown(uri)}, one of {len(uris)} sinks with spaces between, is not a URL; "
                "a space within a URL is written %20, and a chain that holds bare names is written as a JSON list"
            )
    return tuple(_sink(uri) for uri in uris)


def write_text(sinks: Sequence[Sink]) -> str:
    """Return the text that `read_text` reads back."""
    plain = all(sink.ref is None and not sink.options and sink.type is None for sink in sinks)
    named = all(sink.uri == NATIVE or _absolute(sink.uri) for sink in sinks) or len(sinks) == 1
    joined = " ".join(sink.uri for sink in sinks)
    if plain and named and not _is_slip(joined) and not joined.startswith(("{", "[")):
        for sink in sinks:
            _check_uri(sink)
        return joined
    return json.dumps(write(sinks), ensure_ascii=False)


def read(value: object) -> tuple[Sink, ...]:
    """Return the sinks in a YAML or JSON value: a destination or a list of them.

    Raises:
        InvalidSpec, UnknownOption
    """
    return tuple(_sink(item) for item in value) if isinstance(value, list | tuple) else (_sink(value),)


def write(sinks: Sequence[Sink]) -> dict[str, Any] | list[dict[str, Any]]:
    """Return Knative's destination for one sink, a list for a chain.

    Raises:
        InvalidSpec: a uri that could not be read back.
    """
    written = [_write_one(sink) for sink in sinks]
    return written[0] if len(written) == 1 else written


def read_ref(value: object) -> Ref:
    """A KReference."""
    given = _mapping(value, "ref", "{kind: Queue, name: letters}")
    for name, item in given.items():
        if name not in _REF:
            raise unknown("field", f"ref.{name}", [f"ref.{each}" for each in _REF])
        if not isinstance(item, str) or (name in _NEEDED and not item):
            raise InvalidSpec(f"ref.{name} must be text, as in 'letters'")
    for name in _NEEDED:
        if name not in given:
            raise InvalidSpec(f"ref.{name} is missing: a ref names a kind and a name")
    return Ref(**{_REF[name]: item for name, item in given.items()})


def write_ref(ref: Ref) -> dict[str, str]:
    """Return a KReference as a mapping; empty fields are left out."""
    return {name: getattr(ref, attribute) for name, attribute in _REF.items() if getattr(ref, attribute)}


def _sink(value: object) -> Sink:
    if isinstance(value, str):
        value = {"uri": value}
    given = _mapping(value, "each sink", "{uri: 'file:///letters'}")
    for name in given:
        if name not in _SINK:
            raise unknown("field", f"deadLetterSink.{name}", [f"deadLetterSink.{each}" for each in _SINK])
    uri = given.get("uri", "")
    if not isinstance(uri, str):
        raise InvalidSpec("uri must be text, as in 'file:///letters'")
    ref = None if given.get("ref") is None else read_ref(given["ref"])
    if not uri and ref is None:
        raise InvalidSpec("give a uri, as in {uri: 'file:///letters'}, a ref, or both")
    event_type = given.get("type")
    if event_type is not None and (not isinstance(event_type, str) or not event_type):
        raise InvalidSpec("type must be text, as in 'com.example.dead'")
    sink = Sink(uri=uri, ref=ref, options=_options(given), type=event_type)
    _check_uri(sink)
    return sink


def _options(given: Mapping[str, Any]) -> dict[str, str]:
    options = {}
    for name, item in _mapping(given.get("options", {}), "options", "{acks: all}").items():
        try:
            options[name] = as_text(item)
        except InvalidSpec as error:
            raise InvalidSpec(f"options.{name} {error}") from None
    for name, option in _CLIENT.items():
        item = given.get(name)
        if item is None:
            continue
        if not isinstance(item, str) or not item:
            raise InvalidSpec(f"{name} must be text")
        if option in options:
            raise InvalidSpec(f"{name} and options.{option} mean the same; keep one of both")
        options[option] = item
    return options


def _write_one(sink: Sink) -> dict[str, Any]:
    _check_uri(sink)
    written: dict[str, Any] = {"uri": sink.uri} if sink.uri else {}
    if sink.ref is not None:
        written["ref"] = write_ref(sink.ref)
    if sink.options:
        written["options"] = dict(sink.options)
    if sink.type is not None:
        written["type"] = sink.type
    return written


def _check_uri(sink: Sink) -> None:
    if _SPACE_OR_CONTROL.search(sink.uri):
        raise InvalidSpec(f"uri {shown(sink.uri)} holds a space or control character; a space is written %20")
    if sink.ref is not None and _absolute(sink.uri):
        raise InvalidSpec(f"uri {shown(sink.uri)} stands beside a ref, so it must be relative to it; keep one of both")


def _is_slip(uri: str) -> bool:
    """Return whether a name is rather a mistyped `native`, or a yes or no."""
    near = difflib.get_close_matches(uri.lower(), [NATIVE], cutoff=0.9)
    return uri != NATIVE and bool(near or uri.lower() in _NO_NAMES)


def _absolute(uri: str) -> bool:
    try:
        scheme_of(uri)
    except InvalidURL:
        return False
    return True


def _mapping(value: object, what: str, example: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise InvalidSpec(f"{what} must be a mapping with names as keys, as in {example}")
    return value
