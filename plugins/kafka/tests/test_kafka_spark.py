"""Spark jobs on a cluster: batch and stream, an outage in the middle, and the dead letter topic as a DataFrame."""

import threading
import time
from collections import Counter

import pytest
from confluent_kafka import Consumer, TopicPartition

from redelivery.contract.message import Message
from redelivery.contract.spec import NATIVE, DeliverySpec, Sink
from redelivery.receiving.subscription import Subscription
from redelivery_conformance.harness import CannotShow
from redelivery_conformance.statements import Statements, broker_has
from redelivery_conformance.suite.spark import session

CONNECT = "__connect.errors."
TEN = {
    "topic",
    "partition",
    "offset",
    "connector.name",
    "task.id",
    "stage",
    "class.name",
    "exception.class.name",
    "exception.message",
    "exception.stacktrace",
}
SPEC = DeliverySpec(dead_letter_sink=(Sink(uri=NATIVE),))

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),
]


def write(df, subject, **options):
    everything = {**subject.place.options, "url": subject.place.url, **options}
    df.write.format("redelivery").options(**everything).mode("append").save()


def provision(subject):
    if subject.runtime.kind == "embedded":
        raise CannotShow("topic administration: run it in a container, or by --broker-url")
    with subject.broker.admin() as admin:
        admin.provision(SPEC)


def read_back(bootstrap, topic, partitions=(0,)):
    """All records of a topic by a plain consumer, whatever any group has settled."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "reads-back", "enable.auto.commit": False, "log_level": 0}
    consumer = Consumer(settings)
    try:
        places = [TopicPartition(topic, each, 0) for each in partitions]
        end = sum(consumer.get_watermark_offsets(each, timeout=10)[1] for each in places)
        consumer.assign(places)
        found, deadline = [], time.monotonic() + 30
        while len(found) < end and time.monotonic() < deadline:
            found += [each for each in consumer.consume(10_000, 0.2) if each.error() is None]
        assert len(found) == end, "not all could be read back"
        return found
    finally:
        consumer.close()


@broker_has("provision")  # topics of other shapes are made behind the plugin's back
class TestSparkWrites(Statements):
    broker = "kafka"

    def test_the_columns_of_sparks_own_sink_mean_the_same(self, subject):
        bootstrap = subject.runtime.cluster.bootstrap
        wide = subject.place.topic + "-wide"
        subject.runtime.cluster.make(wide, 3)
        sql = f"""
            select cast('k' as binary) as key, cast('v' as binary) as value, '{wide}' as topic, 2 as partition,
                   timestamp_millis(1700000000123) as timestamp,
                   array(struct('a' as key, cast('1' as binary) as value),
                         struct('a' as key, cast('2' as binary) as value)) as headers
        """
        write(session().sql(sql), subject)
        (found,) = read_back(bootstrap, wide, range(3))
        assert (found.key(), found.value(), found.partition()) == (b"k", b"v", 2)
        assert found.timestamp()[1] == 1_700_000_000_123
        assert found.headers() == [("a", b"1"), ("a", b"2")]
        assert not subject.values(), "it went to the row's own topic"

    def test_keys_are_placed_as_the_jvm_places_them(self, subject):
        """By murmur2: these four are vectors of Kafka's own tests, taken modulo the partitions."""
        wide = subject.place.topic + "-wide"
        subject.runtime.cluster.make(wide, 7)
        murmur2 = {b"21": -973932308, b"foobar": -790332482, b"a-little-bit-long-string": -985981536, b"abc": 479470107}
        keys = [(bytearray(key), bytearray(b"v")) for key in murmur2]
        rows = session().createDataFrame(keys, "key binary, value binary")
        write(rows, subject, url=f"kafka://{subject.runtime.cluster.bootstrap}/{wide}")
        placed = {each.key(): each.partition() for each in read_back(subject.runtime.cluster.bootstrap, wide, range(7))}
        assert placed == {key: (number & 0x7FFFFFFF) % 7 for key, number in murmur2.items()}

    def test_a_stream_delivers_each_micro_batch_and_goes_on_from_its_checkpoint(self, subject, tmp_path):
        source = tmp_path / "source"
        source.mkdir()
        for round_, lines in enumerate(("a\nb\n", "c\n")):
            (source / f"{round_}.txt").write_text(lines)
            stream = session().readStream.option("maxFilesPerTrigger", 1).text(str(source))
            query = (
                stream.writeStream.format("redelivery")
                .options(**{**subject.place.options, "url": subject.place.url})
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .trigger(availableNow=True)
                .start()
            )
            assert query.awaitTermination(120)
        assert subject.values() == Counter([b"a", b"b", b"c"])

    def test_a_job_survives_a_broker_stopped_and_started_in_its_middle(self, subject, tmp_path):
        """Fifty thousand rows: each is stored, and those stored twice were reported as retried."""
        from redelivery.spark import deliver  # noqa: PLC0415 - pyspark is an extra

        outage = subject.runtime.outage()  # where it cannot be shown, this says so
        spark = session()

        stopped = tmp_path / "stopped"

        def halting(batches):
            """After some of its rows each task waits for the outage to begin."""
            for at, batch in enumerate(batches):
                end = time.monotonic() + 60
                while at == 10 and not stopped.exists() and time.monotonic() < end:
                    time.sleep(0.05)
                yield batch

        rows = spark.range(0, 50_000, 1, 2).selectExpr("cast(concat('row ', id) as binary) as value")
        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1000")
        over = threading.Event()

        def interrupt():
            while not subject.place.stored():
                if over.wait(0.1):
                    return
            with outage:
                stopped.touch()
                time.sleep(3)

        thread = threading.Thread(target=interrupt)
        thread.start()
        try:
            report = deliver(
                rows.mapInArrow(halting, "value binary"),
                subject.place.url,
                retry=60,
                backoffDelay="PT0.5S",
                backoffPolicy="linear",
                backoffMax="PT2S",
                timeout="PT5S",
                **subject.place.options,
            )
        finally:
            over.set()
            thread.join()
            spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
        assert stopped.exists(), "the job was over before anything was stored"
        assert (report.rows, report.delivered) == (50_000, 50_000)
        assert report.retries > 0, "the outage was not noticed"
        found = Counter(each.value() for each in read_back(subject.runtime.cluster.bootstrap, subject.place.topic))
        assert set(found) == {b"row %d" % at for at in range(50_000)}
        assert found.total() - 50_000 <= report.retries


@broker_has("provision", "receive")
class TestSparkDeadLetters(Statements):
    broker = "kafka"

    def test_refused_rows_are_letters_with_connects_headers_and_a_dataframe(self, subject):
        """Rows for a partition that is not there; their neighbours are delivered."""
        provision(subject)
        rows = (
            session()
            .range(6)
            .selectExpr(
                "cast(concat('v', id) as binary) as value",
                "cast(concat('k', id) as binary) as key",
                "cast(id % 2 * 9 as int) as partition",
            )
        )
        write(rows, subject, deadLetterSink="native")
        assert subject.values() == Counter([b"v0", b"v2", b"v4"])

        letters = read_back(subject.runtime.cluster.bootstrap, subject.place.topic + "-dead-letters")
        assert Counter(each.key() for each in letters) == Counter([b"k1", b"k3", b"k5"])
        for each in letters:
            written = dict(each.headers())
            # A row that was not read from a topic has no place there to be named; all else of Connect's ten is.
            names = {name.removeprefix(CONNECT) for name in written if name.startswith(CONNECT)}
            assert names == TEN - {"topic", "partition", "offset"}
            assert written[CONNECT + "stage"] == b"TASK_PUT"
            assert b"no such partition" in written[CONNECT + "exception.message"]

        options = {**subject.place.options, "url": subject.place.url, "deadLetters": "true"}
        rows = session().read.format("redelivery").options(**options).load().collect()
        assert Counter(bytes(each["value"]) for each in rows) == Counter([b"v1", b"v3", b"v5"])
        assert {each["_error"]["stage"] for each in rows} == {"TASK_PUT"}

    def test_what_a_subscription_gives_up_has_all_ten_of_connects_headers(self, subject):
        provision(subject)
        subject.deliver(Message(value=b"bad", key=b"k", headers=(("own", b"1"),)))

        def handler(_):
            raise ValueError("no such airport")

        Subscription(subject.place.url, handler, spec=SPEC, options=subject.place.options).run(until_empty=True)
        (letter,) = read_back(subject.runtime.cluster.bootstrap, subject.place.topic + "-dead-letters")
        assert (letter.key(), letter.value(), letter.partition()) == (b"k", b"bad", 0)
        written = dict(letter.headers())
        assert written["own"] == b"1"
        assert {name.removeprefix(CONNECT) for name in written if name.startswith(CONNECT)} == TEN
        assert (written[CONNECT + "topic"], written[CONNECT + "partition"], written[CONNECT + "offset"]) == (
            subject.place.topic.encode(),
            b"0",
            b"0",
        )
        assert b"no such airport" in written[CONNECT + "exception.message"]
