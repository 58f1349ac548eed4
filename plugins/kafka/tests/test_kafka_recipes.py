"""The code of the recipes about Kafka runs; dead letters are as Kafka Connect and Spring write them."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from redelivery import DeliverySpec, Sink, dead_letters
from redelivery.contract.spec import NATIVE
from redelivery_conformance.statements import Statements, broker_has
from redelivery_conformance.subject import Subject
from redelivery_conformance.suite.spark import session
from redelivery_kafka.broker import KafkaBroker

RECIPES = Path(__file__).parents[3] / "docs/recipes"
_CONNECT = {
    "topic": "orders",
    "partition": "0",
    "offset": "17",
    "connector.name": "warehouse",
    "task.id": "0",
    "stage": "TASK_PUT",
    "class.name": "org.example.WarehouseSink",
    "exception.class.name": "org.apache.kafka.connect.errors.RetriableException",
    "exception.stacktrace": "org.apache...\n\tat ...",
}
_SPRING = {
    "original-partition": (0).to_bytes(4, "big"),
    "original-offset": (17).to_bytes(8, "big"),
    "original-consumer-group": b"billing",
    "exception-fqcn": b"org.springframework.kafka.listener.ListenerExecutionFailedException",
    "exception-message": b"no answer",
}


def of_connect(topic: str, reason: str) -> list[tuple[str, bytes]]:
    fields = {**_CONNECT, "topic": topic, "exception.message": reason}
    return [("tenant", b"acme"), *((f"__connect.errors.{name}", text.encode()) for name, text in fields.items())]


def of_spring(topic: str, cause: str) -> list[tuple[str, bytes]]:
    fields = {**_SPRING, "original-topic": topic.encode(), "exception-cause-fqcn": f"org.example.{cause}".encode()}
    return [("tenant", b"acme"), *((f"kafka_dlt-{name}", value) for name, value in fields.items())]


def run(recipe: str, topic: str, bootstrap: str, **names: Any) -> int:
    """Run a recipe's blocks in one namespace, at this cluster and topic; return how many they are."""
    blocks = re.findall(r"(?ms)^```python\n(.*?)^```$", (RECIPES / recipe).read_text(encoding="utf-8"))
    for block in blocks:
        code = block.replace("broker:9092/", f"{bootstrap}/").replace("/orders", f"/{topic}")
        exec(code.replace("/dlq-orders", f"/dlq-{topic}"), names)  # noqa: S102 - our own document
    return len(blocks)


class TestKafkaRecipes(Statements):
    broker = "kafka"

    @broker_has("browse", "remove")
    def test_letters_of_connect_and_spring_are_read_and_sent_back_as_the_recipe_says(
        self, subject: Subject, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert isinstance(subject.broker, KafkaBroker)
        topic, cluster = subject.broker.address.topic, subject.runtime.cluster  # type: ignore[attr-defined]
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        if subject.runtime.kind != "embedded":  # which makes a topic with its first record
            cluster.make(f"dlq-{topic}")
            cluster.make(f"{topic}-dlt")
        for number, reason in enumerate(("timeout after 30 s", "no such column", "read timeout")):
            headers: Any = of_connect(topic, reason)
            producer.produce(f"dlq-{topic}", f"connect {number}", f"k{number}", headers=headers)
        for number, cause in enumerate(("StockTimeout", "NoSuchAirport")):
            headers = of_spring(topic, cause)
            producer.produce(f"{topic}-dlt", f"spring {number}", f"k{number}", headers=headers)
        assert producer.flush(30) == 0

        assert run("letters_of_connect_and_spring.md", topic, cluster.bootstrap) == 2
        shown = capsys.readouterr().out
        assert shown.count("org.apache.kafka.connect.errors.RetriableException") == 3
        assert "org.example.NoSuchAirport billing" in shown
        assert Counter(subject.values()) == {b"connect 0": 1, b"connect 2": 1, b"spring 0": 1}
        for name in (f"dlq-{topic}", f"{topic}-dlt"):
            place = subject.place.url.replace(f"/{topic}", f"/{name}")
            with dead_letters(subject.place.url, sink=place, options=subject.place.options) as letters:
                assert len(list(letters)) == 1, name

    @pytest.mark.spark
    @pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
    @broker_has("browse")
    def test_a_write_to_sparks_kafka_sink_becomes_ours_with_the_same_columns(
        self, subject: Subject, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert isinstance(subject.broker, KafkaBroker)
        subject.other_processes()
        if subject.runtime.kind != "embedded":
            with subject.broker.admin() as admin:
                admin.provision(DeliverySpec(dead_letter_sink=(Sink(uri=NATIVE),)))
        spark = session()
        query = "SELECT string(id) AS key, concat('order ', id) AS value, if(id = 2, 99, null) AS partition "
        orders, topic = spark.sql(query + "FROM range(3)"), subject.broker.address.topic
        bootstrap = subject.runtime.cluster.bootstrap  # type: ignore[attr-defined]
        assert run("from_sparks_kafka_sink.md", topic, bootstrap, spark=spark, orders=orders) == 2
        assert Counter(subject.values()) == {b"order 0": 1, b"order 1": 1}
        assert "NO_SUCH_DESTINATION" in capsys.readouterr().out
