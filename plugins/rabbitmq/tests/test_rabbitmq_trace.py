"""A row that Spark writes to RabbitMQ, that dies, is redriven and handled is one trace."""

from __future__ import annotations

from pathlib import Path

import pytest

from redelivery.contract.spec import NATIVE, DeliverySpec, Sink
from redelivery_conformance.statements import Statements, broker_has
from redelivery_conformance.subject import Subject

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),
]


@broker_has("provision", "receive", "dead_letter", "browse", "headers")
class TestATrace(Statements):
    broker = "rabbitmq"

    def test_a_row_of_spark_is_one_trace_until_its_redriven_letter_is_handled(
        self, subject: Subject, tmp_path: Path
    ) -> None:
        pytest.importorskip("pyspark")
        from redelivery_conformance.tracing import journey  # noqa: PLC0415 - needs the SDK

        subject.other_processes()
        with subject.broker.admin() as admin:
            admin.provision(DeliverySpec(dead_letter_sink=(Sink(uri=NATIVE),)))
        found = journey(subject.place.url, subject.place.options, tmp_path / "seen")
        found.check()
        assert all(
            each.attributes["messaging.system"] == "rabbitmq" for each in found.spans if each.name.startswith("send ")
        )
