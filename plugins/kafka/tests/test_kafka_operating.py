"""A night on call at Kafka, by the command line: groups, park, edit, waves that stop and go on, and a real consumer."""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from redelivery import DeliverySpec, Message, Sink, Subscription, cli
from redelivery.codes import Code
from redelivery.contract.context import ErrorContext
from redelivery.formats import dialects
from redelivery_conformance.statements import Statements, broker_has
from redelivery_conformance.subject import Subject

DOWN, WRONG, UNCLEAR = range(12), range(100, 103), range(200, 202)


def order(number: int, currency: str = "EUR") -> bytes:
    return json.dumps({"order": number, "currency": currency}).encode()


def number_of(value: bytes | None) -> int:
    return int(json.loads(value or b"")["order"])


def bury(subject: Subject) -> None:
    """Dead-letter orders of three causes, in messages that all differ."""
    has = subject.capabilities
    failed = [(order(each), "retriable", Code.UNAVAILABLE, f"no answer from 10.0.0.{each}:8443") for each in DOWN]
    failed += [(order(each, "EURO"), "permanent", Code.INVALID_MESSAGE, f"order {each}: no currency") for each in WRONG]
    failed += [(order(each), "permanent", Code.INVALID_MESSAGE, f"order {each}: no customer") for each in UNCLEAR]
    letters = [
        dialects.attach(
            Message(value=value),
            ErrorContext(reason=reason, kind=kind, code=code, attempts=1, attempts_total=1),
            dialect=has.context_dialect,
            limits=has.limits,
            prefix=has.cloudevents_prefix,
        )
        for value, kind, code, reason in failed
    ]
    subject.deliver(*letters, url=subject.broker.native_sink())


class Consumer:
    """Handles orders, and fails while the service that it needs is down."""

    def __init__(self) -> None:
        self.down = False
        self.handled: Counter[int] = Counter()
        self._changed = threading.Condition()

    def __call__(self, message: Message) -> None:
        if self.down:
            raise ConnectionError(f"no answer from 10.0.0.7:8443, request {number_of(message.value)}")
        with self._changed:
            self.handled[number_of(message.value)] += 1
            self._changed.notify()

    def has_handled(self, *numbers: int) -> bool:
        """Wait until it has handled these orders, each once."""
        with self._changed:
            return self._changed.wait_for(lambda: self.handled == Counter(numbers), 60)

    @contextmanager
    def runs(self, subject: Subject) -> Iterator[None]:
        spec = DeliverySpec(dead_letter_sink=(Sink(uri="native"),))
        place = subject.place
        subscription = Subscription(place.url, self, spec=spec, options=place.options, breaker=None)
        thread = threading.Thread(target=subscription.run)
        thread.start()
        try:
            yield
        finally:
            subscription.stop()
            thread.join(60)
            assert not thread.is_alive()


@broker_has("provision", "receive", "dead_letter", "browse", "headers")
class TestKafkaOperating(Statements):
    broker = "kafka"

    def test_an_operators_night(
        self,
        subject: Subject,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        place = subject.place
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
        (tmp_path / "redelivery.toml").write_text(
            f"[places.orders]\nurl = {json.dumps(place.url)}\noptions = {{ "
            + ", ".join(f"{json.dumps(name)} = {json.dumps(value)}" for name, value in place.options.items())
            + " }\n",
            encoding="utf-8",
        )
        monkeypatch.chdir(tmp_path)

        def run(command: str, *arguments: str) -> tuple[int, str]:
            capsys.readouterr()
            status = cli.main(["dead-letters", command, "orders", *arguments])
            return status, capsys.readouterr().out

        def account(*arguments: str) -> tuple[int, dict[str, Any]]:
            status, out = run("redrive", *arguments, "--json")
            return status, json.loads(out)

        def count() -> int:
            return int(json.loads(run("stats", "--json")[1])["count"])

        subject.provision()
        bury(subject)
        groups = json.loads(run("stats", "--by", "fingerprint", "--json")[1])["groups"]
        assert [each["count"] for each in groups] == [len(DOWN), len(WRONG), len(UNCLEAR)]
        down, wrong, unclear = (each["fingerprint"] for each in groups)

        assert run("park", "--group", unclear, "--note", "ask the shop")[0] == 0
        assert account("--where", f"group={unclear}")[1]["left"] == {"parked": len(UNCLEAR)}

        patch = tmp_path / "euro.json"
        test = {"op": "test", "path": "/currency", "value": "EURO"}
        patch.write_text(json.dumps({"body": [test, {**test, "op": "replace", "value": "EUR"}]}), encoding="utf-8")
        assert [account("--patch", str(patch), "--group", wrong)[1]["redriven"] for _ in range(2)] == [len(WRONG), 0]
        assert Counter(map(number_of, subject.values().elements())) == Counter(WRONG)
        assert all(json.loads(each or b"")["currency"] == "EUR" for each in subject.values())

        consumer = Consumer()
        with consumer.runs(subject):
            assert consumer.has_handled(*WRONG), consumer.handled
            consumer.down = True
            status, report = account("--group", down, "--waves", "2,100", "--stop-at", "1")
            assert (status, report["redriven"]) == (1, 2)
            assert re.match(r"wave 1: [12] of 2 came back and 0 were refused", report["stopped"]), report
            while count() < len(DOWN) + len(UNCLEAR):
                pass  # the second one is on its way back
            consumer.down = False
            status, report = account("--waves", "2,100", "--wave-wait", "PT1S")
            assert (status, report["redriven"], report["left"]) == (0, len(DOWN), {"parked": len(UNCLEAR)})
            assert [each["sent"] for each in report["waves"]] == [2, len(DOWN) - 2]
            assert consumer.has_handled(*WRONG, *DOWN), consumer.handled
        assert count() == len(UNCLEAR)
