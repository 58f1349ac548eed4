"""The JSON error context: KIP-298's older text (record, stages, exception, attempt, ...) and our own fields."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any, Final

from redelivery.base.urls import redact_options
from redelivery.contract.context import STAGES, ErrorContext
from redelivery.contract.message import Message

#: The member that holds our own fields.
OURS: Final = "redelivery"


def document(
    context: ErrorContext,
    fields: Mapping[str, Any],
    message: Message,
    *,
    include_message: bool,
    configs: Mapping[str, str] | None,
) -> dict[str, Any]:
    """Return the whole context as one JSON object.

    Args:
        context: the source of KIP-298's members.
        fields: our own fields.
        message: the record: its coordinates, and with `include_message` its payload.
        include_message: a payload may hold secrets, so it is written only on request.
        configs: settings of the failing stage; redacted here.
    """
    own = dict(fields)
    trace = own.pop("stacktrace", None)
    if trace is None:
        own["stacktrace"] = None  # so that `exception` is not mistaken for one
    known = {
        **included(context, message, include_message=include_message, configs=configs),
        "exception": trace or f"{context.exception or context.kind}: {context.reason}",
        "attempt": None if context.attempts is None else max(0, context.attempts - 1),  # it counts re-attempts
        "task_id": "-".join(str(part) for part in (context.run, context.partition) if part is not None),
        "time_of_error": context.last_failure_ms,
    }
    return {name: value for name, value in known.items() if value not in (None, "", {})} | {OURS: own}


def included(
    context: ErrorContext, message: Message, *, include_message: bool, configs: Mapping[str, str] | None
) -> dict[str, Any]:
    """Return the record and the stages, with what was requested; arguments as of `document`."""
    return {"record": _record(context, message, include_message=include_message), **_stages(context, configs)}


def asked_for(form: Mapping[str, Any]) -> dict[str, Any]:
    """Return, of such an object, the record if it holds the message, and the stages if they hold settings."""
    record, stages = form.get("record"), form.get("stages")
    found: dict[str, Any] = {}
    if isinstance(record, dict) and "value" in record:
        found["record"] = record
    if isinstance(stages, list) and any(isinstance(each, dict) and "config" in each for each in stages):
        found |= {"index": form.get("index"), "stages": stages}
    return found


def read(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of such an object, whoever wrote it, unchecked."""
    out: dict[str, Any] = {}
    stages, index = found.get("stages"), found.get("index")
    if isinstance(stages, list) and isinstance(index, int) and 0 <= index < len(stages):
        stage = stages[index]
        out["stage"] = stage.get("type") if isinstance(stage, dict) else None
    attempt = found.get("attempt")
    if attempt is not None:
        out["attempts"] = attempt + 1 if isinstance(attempt, int) else attempt
    out["stacktrace"] = found.get("exception")
    out["last_failure_ms"] = found.get("time_of_error")
    return out | ours(found)


def ours(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return our own fields of such an object, unchecked."""
    own = found.get(OURS)
    return own if isinstance(own, dict) else {}


def parse(value: bytes | None) -> dict[str, Any] | None:
    """Return the object in a header, or None: anyone may have written it."""
    try:
        found = json.loads(value or b"")
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def dump(form: Mapping[str, Any]) -> bytes:
    """Return an object as header text: ASCII only, which every broker and client accepts."""
    return json.dumps(form, separators=(",", ":")).encode()


def _stages(context: ErrorContext, configs: Mapping[str, str] | None) -> dict[str, Any]:
    if context.stage not in STAGES:
        return {}
    index = STAGES.index(context.stage)
    stages: list[dict[str, Any]] = [{"type": stage} for stage in STAGES]
    if context.component or context.broker:
        stages[index]["class"] = context.component or context.broker
    if configs:
        stages[index]["config"] = redact_options(configs)
    return {"index": index, "stages": stages}


def _record(context: ErrorContext, message: Message, *, include_message: bool) -> dict[str, Any]:
    source_partition: Mapping[str, Any]
    if context.source_topic is not None:
        source_partition = {"topic": context.source_topic, "partition": context.source_partition}
        source_offset = {"offset": context.source_offset}
    else:
        source_partition = {name: getattr(context, name) for name in ("run", "query", "batch", "partition")}
        source_offset = {"position": context.position}
    record: dict[str, Any] = {
        "topic": context.source_topic or context.target,
        "partition": context.source_partition,
        "offset": context.source_offset,
        "timestamp": message.timestamp_ms,
        "timestamp_type": _timestamp_type(context, message),
        "source_partition": _texts(source_partition),
        "source_offset": _texts(source_offset),
    }
    record = {name: value for name, value in record.items() if value not in (None, {})}
    if include_message:
        headers = json.dumps([[name, _base64(value)] for name, value in message.headers])
        record["key"] = {"schema": "BYTES", "object": _base64(message.key)}
        record["value"] = {"schema": "BYTES", "object": _base64(message.value)}
        record["headers"] = {"schema": "ARRAY", "object": headers}
    return record


def _timestamp_type(context: ErrorContext, message: Message) -> str:
    if message.timestamp_ms is None:
        return "NO_TIMESTAMP_TYPE"
    return context.source_timestamp_type or "CREATE_TIME"


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in values.items() if value is not None}


def _base64(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()
