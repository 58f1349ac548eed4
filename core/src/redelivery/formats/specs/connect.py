"""A delivery spec as Connect's error handling properties (KIP-298), its final text's and its older one's.

- `errors.deadletterqueue.topic.name` becomes `Sink(uri=name)`: a name without a scheme is a sibling of the job's
  destination, a queue or topic at the same broker, which the destination's plugin turns into a URL. A URL may stand
there too, and `native` for the destination's own dead letter queue. `errors.deadletterqueue.producer.*` become
  the sink's `options`, spelled as given.
- Tolerance keeps Connect's default, "none": a named sink alone tolerates nothing. The older text's limits imply it.
- `errors.deadletterqueue.enable` unset means enabled where a name is given (the final text); false turns the sink off.
- The context headers are the one default not kept: unset, they are written, as a letter must give its reason.
- What Connect has no word for is read and written with the prefix `redelivery.`: `redelivery.backoffDelay=PT5S`,
  `redelivery.allowSkip=true`, and `redelivery.deadLetterSink` for a chain or a ref.

Other properties of a connector are refused, never ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from redelivery.base.urls import unknown
from redelivery.contract.spec import DeliverySpec
from redelivery.formats.specs import fields, sinks
from redelivery.formats.specs.field_types import as_text

_OURS: Final = "redelivery."
_EXTENSION: Final = tuple(field for field in (*fields.KNATIVE, *fields.OURS) if field.name != "retry")
_KNOWN: Final = (
    *(field.name for field in fields.CONNECT),
    *(name for name in fields.SINKS if name != fields.DEAD_LETTER_SINK),
    *(_OURS + field.name for field in _EXTENSION),
    _OURS + fields.DEAD_LETTER_SINK,
)
_EXTENSION_LOWER: Final = {name.lower() for name in _KNOWN if name.startswith(_OURS)}


def read(properties: Mapping[str, str]) -> DeliverySpec:
    """Return the spec that properties give. Names are read in any case.

    Raises:
        UnknownOption: names the nearest known property.
        InvalidSpec: a malformed value, one field under two names, or values that contradict each other.
    """
    said = []
    for name, value in properties.items():
        lower = name.lower()
        if not lower.startswith("errors.") and lower not in _EXTENSION_LOWER:
            raise unknown("property", name, _KNOWN)
        said.append(fields.GivenField(name[len(_OURS) :] if lower.startswith(_OURS) else name, value, name))
    return fields.read(said, what="property", known=_KNOWN)


def write(spec: DeliverySpec) -> dict[str, str]:
    """Return the properties that `read` reads back. Never log them: a sink's settings may hold secrets.

    Raises:
        InvalidSpec: a value that no property can express, as a retry timeout of half a millisecond.
    """
    sinks_of = spec.dead_letter_sink
    plain = len(sinks_of) == 1 and sinks_of[0].ref is None and sinks_of[0].type is None
    written = fields.write(spec, fields.CONNECT, _EXTENSION, default_none=plain)
    extension = {field.name for field in _EXTENSION}
    texts = {(_OURS + name if name in extension else name): as_text(value) for name, value in written.items()}
    if plain:
        (sink,) = spec.dead_letter_sink
        fields.labelled(fields.TOPIC, sinks.write, spec.dead_letter_sink)
        texts[fields.TOPIC] = sink.uri
        texts.update({fields.PRODUCER + name: value for name, value in sink.options.items()})
    elif spec.dead_letter_sink:
        label = _OURS + fields.DEAD_LETTER_SINK
        texts[label] = fields.labelled(label, sinks.write_text, spec.dead_letter_sink)
    return texts
