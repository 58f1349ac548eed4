"""How a write names its sinks."""

from __future__ import annotations

from redelivery.spark.options import read_write_options


def test_a_sink_without_a_scheme_is_another_place_at_the_destination(shelf) -> None:
    options = {"url": shelf.url(), "errors.deadletterqueue.topic.name": "dlq", "errors.tolerance": "all"}
    (sink,) = read_write_options(options).spec.dead_letter_sink
    assert sink.uri == "dlq"
