"""A dead letter topic at another cluster than the job's topic, as Connect's properties write it."""

import base64
import json
from contextlib import contextmanager

import pytest

from redelivery.contract.message import Batch, Message
from redelivery.errors import ConfigurationError
from redelivery.formats.specs import connect, options
from redelivery.provisioning import plan
from redelivery.sending import Delivery, Origin
from redelivery.spark.options import read_write_options
from redelivery_kafka.admin import KafkaAdmin
from redelivery_kafka.testing.mock import MockCluster
from redelivery_kafka.testing.reading import Reader

TOPIC = "errors.deadletterqueue.topic.name"
PRODUCER = "errors.deadletterqueue.producer."
ROWS = [Message(value=b"good"), Message(value=b"bad", destination="no such topic")]


@contextmanager
def cluster(*topics):
    """A mock cluster with topics of one partition."""
    mock = MockCluster()
    try:
        for each in topics:
            mock.make(each, 1)
        yield mock.bootstrap
    finally:
        mock.close()


def stored(bootstrap, topic):
    reader = Reader({"bootstrap.servers": bootstrap, "log_level": 0})
    try:
        return [each.value() for each in reader.left(topic, "none")]
    finally:
        reader.close()


def deliver(url, spec, **client):
    with Delivery.open(url, spec, options=client, origin=Origin(run="run")) as delivery:
        delivery.write(Batch.of(ROWS, number=1))
        return delivery.finish()


@pytest.mark.parametrize("name", ["letters", "orders"])
def test_a_bare_name_with_servers_of_its_own_is_a_topic_at_those(name):
    """Even the name of the destination, which at another cluster is another topic."""
    with cluster("orders", "letters") as home, cluster(name) as elsewhere:
        spec = connect.read(
            {
                "errors.tolerance": "all",
                TOPIC: name,
                PRODUCER + "bootstrap.servers": elsewhere,
                PRODUCER + "linger.ms": "0",
            }
        )
        report = deliver(f"kafka://{home}/orders", spec)
        assert (report.delivered, report.dead_lettered) == (1, 1)
        assert stored(home, "orders") == [b"good"]
        assert stored(elsewhere, name) == [b"bad"]
        assert stored(home, "letters") == []
        assert list(report.destinations) == [f"kafka://{home}/orders", f"kafka://{elsewhere}/{name}"]


def test_servers_of_a_sinks_own_win_over_those_of_its_url_and_the_report_names_them():
    with cluster("orders") as home, cluster("letters") as elsewhere:
        sink = f'{{"uri": "kafka://{home}/letters", "options": {{"bootstrap.servers": "{elsewhere}"}}}}'
        report = deliver(f"kafka://{home}/orders", options.read({"deadLetterSink": sink}))
        assert list(report.destinations)[-1] == f"kafka://{elsewhere}/letters"
        assert stored(elsewhere, "letters") == [b"bad"]


def test_the_destination_itself_is_refused_whichever_way_it_is_named():
    with cluster("orders") as home, cluster("orders") as elsewhere:
        sinks = [
            {TOPIC: "orders"},
            {TOPIC: "orders", PRODUCER + "bootstrap.servers": home},
            {TOPIC: f"kafka://{elsewhere}/orders", PRODUCER + "bootstrap.servers": home},
        ]
        for each in sinks:
            with pytest.raises(ConfigurationError, match="is the destination itself"):
                deliver("kafka:///orders", connect.read(each), **{"kafka.bootstrap.servers": home})
        assert stored(home, "orders") == stored(elsewhere, "orders") == []


def letter(bootstrap, topic):
    """The headers of the one letter in a topic."""
    reader = Reader({"bootstrap.servers": bootstrap, "log_level": 0})
    try:
        (found,) = reader.left(topic, "none")
        return dict(found.headers())
    finally:
        reader.close()


@pytest.mark.parametrize("dialects", [None, "connect", "connect,knativeerror"])
def test_what_connect_has_no_header_for_is_in_the_json_beside_them(dialects):
    """The record and the settings, where they are asked for: in whichever dialects the letter is."""
    given = {
        "deadLetterSink": "native",
        "errors.deadletterqueue.include.messages": "true",
        "errors.deadletterqueue.include.configs": "true",
        **({} if dialects is None else {"deadLetterDialects": dialects}),
    }
    with cluster("orders", "orders-dead-letters") as here:
        origin = Origin(run="run", configs={"kafka.linger.ms": "5", "kafka.sasl.password": "hunter2"})
        with Delivery.open(f"kafka://{here}/orders", options.read(given), origin=origin) as delivery:
            delivery.write(Batch.of(ROWS, number=1))
            assert delivery.finish().dead_lettered == 1
        headers = letter(here, "orders-dead-letters")
    assert headers["__connect.errors.stage"] == b"TASK_PUT"
    assert ("ce_knativeerrordata" in headers) == (dialects == "connect,knativeerror")
    form = json.loads(headers["redelivery-context"])
    assert base64.b64decode(form["record"]["value"]["object"]) == b"bad"
    assert form["stages"][form["index"]]["config"]["kafka.linger.ms"] == "5"
    assert "hunter2" not in str(headers)


def test_a_row_may_not_name_the_dead_letter_topic_as_its_own():
    """It would be taken for a letter without a reason; as a letter it has one."""
    rows = [Message(value=b"good"), Message(value=b"sly", destination="orders-dead-letters")]
    with cluster("orders", "orders-dead-letters") as here:
        spec = options.read({"deadLetterSink": "native"})
        with Delivery.open(f"kafka://{here}/orders", spec, origin=Origin(run="run")) as delivery:
            delivery.write(Batch.of(rows, number=1))
            report = delivery.finish()
        assert (report.delivered, report.dead_lettered) == (1, 1)
        headers = letter(here, "orders-dead-letters")
        assert b"this is the dead letter topic" in headers["__connect.errors.exception.message"]


@pytest.mark.parametrize("spell", [str, str.upper, str.title])
def test_a_job_in_spark_takes_them_in_any_case_of_their_prefix(spell):
    given = {
        "url": "kafka://here/orders",
        TOPIC: "letters",
        spell(PRODUCER) + "bootstrap.servers": "elsewhere:9092",
        spell(PRODUCER) + "sasl.password": "env:PASSWORD",
        "sink.kafka.linger.ms": "0",
    }
    (sink,) = read_write_options(given).spec.dead_letter_sink
    assert sink.options == {
        "kafka.bootstrap.servers": "elsewhere:9092",
        "kafka.sasl.password": "env:PASSWORD",
        "kafka.linger.ms": "0",
    }


def test_a_job_in_spark_refuses_a_setting_that_the_client_does_not_know_and_a_password_as_it_is():
    given = {"url": "kafka://here/orders", TOPIC: "letters"}
    with pytest.raises(ConfigurationError, match=r"sasl.password.*secret"):
        read_write_options({**given, PRODUCER + "sasl.password": "hunter2"})
    with pytest.raises(ConfigurationError, match="given twice"):
        read_write_options({**given, PRODUCER + "acks": "all", "sink.kafka.acks": "1"})


@pytest.mark.parametrize("name", ["letters", "orders"])
def test_a_plan_names_the_cluster_of_a_sink_that_is_not_made_here(monkeypatch, name):
    """The mock has no topic administration, so its answer is given."""
    monkeypatch.setattr(KafkaAdmin, "_describe", lambda *_: None)
    spec = connect.read({TOPIC: name, PRODUCER + "bootstrap.servers": "elsewhere:9092"})
    planned = plan("kafka://here/orders", spec)
    assert [each.name for each in planned.plan.objects] == ["orders"]
    assert any(f"the sink kafka://elsewhere:9092/{name} is another place" in each for each in planned.warnings)


@pytest.mark.parametrize("given", [{TOPIC: "letters"}, {TOPIC: "kafka://here/letters"}])
def test_a_plan_makes_a_sink_with_settings_of_its_own_at_the_same_cluster(monkeypatch, given):
    monkeypatch.setattr(KafkaAdmin, "_describe", lambda *_: None)
    given |= {PRODUCER + "linger.ms": "0", "errors.deadletterqueue.topic.partitions": "7"}
    spec = connect.read({**given, "errors.deadletterqueue.topic.replication.factor": "2"})
    planned = plan("kafka://here/orders", spec)
    (_, letters) = planned.plan.objects
    assert letters.name == "letters"
    assert (letters.attributes["partitions"], letters.attributes["replication.factor"]) == ("7", "2")
    assert not any("is another place" in each for each in planned.warnings)


@pytest.mark.parametrize(
    ("sink", "name"),
    [
        ("native", "orders-dead-letters"),
        ("letters", "letters"),
        ("kafka://here/letters", "letters"),
        ('{"ref": {"kind": "KafkaTopic", "name": "letters", "apiVersion": "kafka.strimzi.io/v1beta2"}}', "letters"),
    ],
)
def test_a_sink_gets_the_partitions_and_replicas_asked_for_however_it_is_named(monkeypatch, sink, name):
    monkeypatch.setattr(KafkaAdmin, "_describe", lambda *_: None)
    given = {"errors.deadletterqueue.topic.partitions": "7", "errors.deadletterqueue.topic.replication.factor": "2"}
    planned = plan("kafka://here/orders", options.read({**given, "deadLetterSink": sink}))
    _, letters = planned.plan.objects
    assert (letters.name, planned.plan.status.dead_letter_channel.name) == (name, name)
    assert (letters.attributes["partitions"], letters.attributes["replication.factor"]) == ("7", "2")


def test_a_plan_refuses_the_destination_itself_and_not_its_name_at_another_cluster(monkeypatch):
    monkeypatch.setattr(KafkaAdmin, "_describe", lambda *_: None)
    spec = connect.read({TOPIC: "orders", PRODUCER + "bootstrap.servers": "here:9092"})
    with pytest.raises(ConfigurationError, match="is the destination itself"):
        plan("kafka:///orders", spec, options={"kafka.bootstrap.servers": "here"})


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_a_job_in_spark_writes_its_letters_to_another_cluster_and_reads_them_back_from_there():
    from redelivery.spark import deliver, undelivered  # noqa: PLC0415 - pyspark is an extra
    from redelivery_conformance.suite.spark import session  # noqa: PLC0415 - the same

    with cluster("orders", "letters") as home, cluster("letters") as elsewhere:
        properties = {TOPIC: "letters", "errors.tolerance": "all", PRODUCER + "bootstrap.servers": elsewhere}
        rows = session().sql("select binary('good') as value, null as topic union all select binary('bad'), 'no such'")
        report = deliver(rows, f"kafka://{home}/orders", **properties)
        assert (report.delivered, report.dead_lettered) == (1, 1)
        assert list(report.destinations)[-1] == f"kafka://{elsewhere}/letters"
        assert stored(elsewhere, "letters") == [b"bad"]
        assert stored(home, "letters") == []
        again = undelivered(session(), report, connect.read(properties))
        assert [bytes(each["value"]) for each in again.collect()] == [b"bad"]
