"""A delivery spec as one flat mapping of options, as Spark gives them: every name of both dialects, in any case.

Knative's fields in camelCase, Connect's `errors.*` (its older names too), and ours (`backoffProfile`, `allowSkip`).
`deadLetterSink` is `native`, one URL or name, several URLs separated by spaces (a space within one is written %20), or
JSON as Knative writes it. Only JSON can give a ref or a sink's own client settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from redelivery.contract.spec import DeliverySpec
from redelivery.formats.specs import fields, sinks
from redelivery.formats.specs.field_types import as_text

#: Every option with one line of help. Connect's older examples' `errors.dlq.*` and `errors.retries.*` are read too.
OPTIONS: Final[Mapping[str, str]] = {
    fields.DEAD_LETTER_SINK: fields.SINKS[fields.DEAD_LETTER_SINK],
    **{field.name: field.help for field in (*fields.KNATIVE, *fields.OURS, *fields.CONNECT)},
    **{name: help_ for name, help_ in fields.SINKS.items() if name != fields.DEAD_LETTER_SINK},
}
_LOWER: Final = frozenset(name.lower() for name in OPTIONS)


def is_spec_option(name: str) -> bool:
    """Whether an option belongs to the delivery spec: a known name, or anything that begins with `errors.`."""
    return name.lower() in _LOWER or name.lower().startswith("errors.")


def read(options: Mapping[str, str]) -> DeliverySpec:
    """Return the spec that options give; numbers and flags may be given as such.

    Raises:
        UnknownOption: names the nearest known option.
        InvalidSpec: a malformed value, one field given in two dialects, or values that contradict each other.
    """
    said = [fields.GivenField(name, value, name) for name, value in options.items()]
    return fields.read(said, what="option", known=OPTIONS)


def write(spec: DeliverySpec) -> dict[str, str]:
    """Return the options that `read` reads back, Knative's names first. Never log them: sinks may hold secrets.

    Raises:
        InvalidSpec: a value that no option can express, as a retry timeout of half a millisecond.
    """
    written = fields.write(spec, fields.KNATIVE, fields.CONNECT, fields.OURS)
    texts = {name: as_text(value) for name, value in written.items()}
    if spec.dead_letter_sink:
        label = fields.DEAD_LETTER_SINK
        texts[label] = fields.labelled(label, sinks.write_text, spec.dead_letter_sink)
    return texts
