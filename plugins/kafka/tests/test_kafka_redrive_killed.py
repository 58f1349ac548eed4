"""A redrive job over three partitions, killed at random moments, sends every letter and forgets none.

Kafka stores no id and recognises none: what was confirmed and not yet noted when a task was killed comes twice.

REDELIVERY_REDRIVE_KILLS sets how often; REDELIVERY_REDRIVE_SEED, which moments.
"""

import json
import os
import random
from collections import Counter
from pathlib import Path

import killing
import pytest
from confluent_kafka import Consumer, TopicPartition

from redelivery.contract.context import ErrorContext
from redelivery.contract.message import Batch, Message
from redelivery.formats import dialects
from redelivery.policy.rate import PIECE
from redelivery.registry import connect
from redelivery_conformance.statements import Statements, broker_has
from redelivery_kafka.codec import message_of

KILLS = int(os.environ.get("REDELIVERY_REDRIVE_KILLS", "2"))
SEED = int(os.environ.get("REDELIVERY_REDRIVE_SEED", "17"))
LETTERS = 600 * (KILLS + 1)
RATE = 600
PARTITIONS = 3

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),
]


def bury(url, options, count):
    """Dead-letter messages `n0`, `n1` and so on, over all partitions."""
    said = ErrorContext(reason="no", kind="permanent", native_code="No", attempts=3, attempts_total=3)
    with connect(url, options) as destination:
        sink = destination.native_sink()
    with connect(sink, options) as broker, broker.sender() as sender:
        limits, dialect = broker.capabilities.limits, broker.capabilities.context_dialect
        prefix = broker.capabilities.cloudevents_prefix
        plain = [Message(value=b"%d" % at, id=f"n{at}", key=b"k%d" % at) for at in range(count)]
        letters = [dialects.attach(each, said, dialect=dialect, limits=limits, prefix=prefix) for each in plain]
        sender.send(Batch.of(letters), deadline=1e12)
        settled = []
        while not settled:
            settled += sender.collect(10)
        assert not settled[0].error
        assert not settled[0].failures


class Topic:
    """The records of a topic, by a plain consumer."""

    def __init__(self, bootstrap, topic):
        self._consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "counts", "enable.auto.commit": False})
        found = self._consumer.list_topics(topic, timeout=10).topics[topic].partitions
        self._places = [TopicPartition(topic, each, 0) for each in found]

    @property
    def count(self):
        return sum(self._consumer.get_watermark_offsets(each, timeout=10)[1] for each in self._places)

    def messages(self):
        end, found = self.count, []
        self._consumer.assign(self._places)
        while len(found) < end:
            found += [message_of(each)[0] for each in self._consumer.consume(10_000, 0.2) if each.error() is None]
        self._consumer.close()
        return found


@broker_has("provision")  # a topic of several partitions is made behind the plugin's back
class TestKafkaRedriveKilled(Statements):
    broker = "kafka"

    @pytest.mark.parametrize("how", ["plain", "mend"])
    def test_a_redrive_that_is_killed_loses_nothing_and_doubles_what_was_in_flight_at_most(
        self, subject, tmp_path, how
    ):
        cluster, place = subject.runtime.cluster, subject.place
        cluster.make(f"{place.topic}-dead-letters", PARTITIONS)
        bury(place.url, place.options, LETTERS)
        there = Topic(cluster.bootstrap, place.topic)
        draw = random.Random(f"{SEED} {how}")  # noqa: S311 - repeatable
        shares = sorted(draw.random() * 0.95 for _ in range(KILLS))
        print(f"seed {SEED}: {KILLS} kills at {[int(share * LETTERS) for share in shares]}")  # noqa: T201
        log, journal = tmp_path / "log", tmp_path / "journal.db"
        script = Path(killing.__file__).parent / "spark" / "redrive_job.py"
        options = [f"{name}={text}" for name, text in place.options.items()]

        def start():
            return killing.start(script, place.url, journal, RATE, how, *options, log=log)

        job, killed = None, Counter()
        for nth, share in enumerate(shares):
            job = job or start()
            if not killing.wait_until(job, lambda share=share: there.count > share * LETTERS):
                break
            killing.moment(draw)
            if nth % 2:
                killing.kill_driver(job)
                job = None
                killed["driver"] += 1
            else:
                killed["worker"] += killing.kill_a_worker(job, draw)
        job = job or start()
        assert job.wait(timeout=killing.PATIENCE) == 0, log.read_text()[-4000:]
        assert killed["driver"] + killed["worker"] >= KILLS - 1, "it was hardly killed, so nothing was tested"
        report = json.loads([line for line in log.read_text().splitlines() if line.startswith('{"considered"')][-1])
        assert report["stopped"] is None
        assert report["redriven"] > 0

        sent = there.messages()
        numbers = Counter(int(each.value) for each in sent)
        print(f"killed: {dict(killed)}; {len(sent) - LETTERS} of {LETTERS} letters came twice")  # noqa: T201
        assert set(numbers) == set(range(LETTERS))
        assert {dialects.history(each).hops for each in sent} == {1}
        most = killed["driver"] * PARTITIONS + killed["worker"]  # parts whose last batch was confirmed and not noted
        assert sum(numbers.values()) - LETTERS <= most * RATE * PIECE
        with connect(place.url, place.options) as broker, broker.dead_letters() as letters:
            assert list(letters.browse()) == []
