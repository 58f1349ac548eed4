"""The dead letters role of `sqs:` against scripted answers, with a clock that does not wait."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from redelivery.contract.broker import Letter
from redelivery.errors import Ambiguous, Fatal, Retriable
from redelivery_sqs import dead_letters as module
from redelivery_sqs.address import Address
from redelivery_sqs.client import batch_requests, connections, queue
from redelivery_sqs.client.scan import Scan
from redelivery_sqs.dead_letters import SqsDeadLetters
from redelivery_sqs.options import Settings

ARN = "arn:aws:sqs:eu-west-1:123456789012:"


def moved(
    monkeypatch: pytest.MonkeyPatch, source: str, opened: str = "orders", *, direct: bool = False, fifo: bool = False
) -> Letter:
    """A letter that SQS itself has moved, as the role of a queue shows it."""
    monkeypatch.setattr(connections, "boto_client", lambda *_: None)
    monkeypatch.setattr(connections, "queue_url", lambda address, *_, **__: f"http://x/123456789012/{address.queue}")
    role = SqsDeadLetters(Address(opened + ".fifo" * fifo), Settings(), direct=direct)
    attributes = {"SentTimestamp": "1700000000000", "DeadLetterQueueSourceArn": source}
    return role._letter({"MessageId": "m", "Body": "b", "Attributes": attributes})


@pytest.mark.parametrize(("fifo", "dead_ms"), [(False, None), (True, 1_700_000_000_000)])
def test_a_letter_that_sqs_itself_moved_says_why_and_when_as_far_as_sqs_knows(
    monkeypatch: pytest.MonkeyPatch, fifo: bool, dead_ms: int | None
) -> None:
    """A standard queue's keeps the time at which it was first sent."""
    name = "orders" + ".fifo" * fifo
    letter = moved(monkeypatch, ARN + name, fifo=fifo)
    assert letter.context is not None
    assert (letter.context.kind, letter.context.destination) == ("delivery-limit", f"sqs:{name}")
    assert ARN + name in letter.context.reason
    assert letter.context.target is None, "it goes back to the queue that was opened"
    assert letter.dead_lettered_ms == dead_ms


def test_a_letter_that_sqs_moved_from_another_queue_names_that_as_its_target(monkeypatch: pytest.MonkeyPatch) -> None:
    context = moved(monkeypatch, ARN + "billing").context
    assert context is not None
    assert (context.target, context.destination) == ("billing", "sqs:billing")


@pytest.mark.parametrize("source", ["arn:aws:sqs:eu-west-1:999999999999:orders", "arn:odd", ARN + "no such name"])
def test_a_source_in_another_account_is_never_taken_for_a_queue_of_this_one(
    monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    context = moved(monkeypatch, source).context
    assert context is not None
    assert (context.target, context.destination) == (source, f"sqs:{source}")


def test_letters_of_a_sink_say_where_they_failed_as_an_address_that_can_be_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    context = moved(monkeypatch, ARN + "billing", "shared", direct=True).context
    assert context is not None
    assert (context.target, context.destination) == (None, "sqs:billing")


class Shown:
    """An SQS that shows letters, and hides them by a clock that the test moves."""

    def __init__(self, count: int) -> None:
        self.now = 0.0
        self.until = {str(at): 0.0 for at in range(count)}
        self.prolonged: list[str] = []

    def monotonic(self) -> float:
        return self.now

    def time_ns(self) -> int:
        return 10**18

    def receive_message(self, *, VisibilityTimeout: int, **_: object) -> Mapping[str, Any]:  # noqa: N803 - SQS's own words
        names = [name for name, until in self.until.items() if until <= self.now][:10]
        self.until |= dict.fromkeys(names, self.now + VisibilityTimeout)
        return {"Messages": [{"MessageId": name, "ReceiptHandle": name, "Body": name} for name in names]}

    def change_message_visibility_batch(
        self,
        *,
        QueueUrl: str,  # noqa: N803 - SQS's own words
        Entries: Sequence[Mapping[str, Any]],  # noqa: N803 - SQS's own words
    ) -> Mapping[str, Any]:
        for each in Entries:
            assert self.now < self.until[each["ReceiptHandle"]], "it was not ours any more"
            self.until[each["ReceiptHandle"]] = self.now + each["VisibilityTimeout"]
            self.prolonged += [each["ReceiptHandle"]] * bool(each["VisibilityTimeout"])
        return {"Successful": [{"Id": each["Id"]} for each in Entries]}

    def get_queue_attributes(self, **_: object) -> Mapping[str, Any]:
        return {"Attributes": {}}


def showing(monkeypatch: pytest.MonkeyPatch, count: int) -> tuple[Shown, SqsDeadLetters]:
    sqs = Shown(count)
    monkeypatch.setattr(connections, "boto_client", lambda *_: sqs)
    monkeypatch.setattr(connections, "queue_url", lambda address, *_, **__: address.queue)
    for each in (module, batch_requests, queue):
        monkeypatch.setattr(each, "time", sqs)
    return sqs, SqsDeadLetters(
        Address("letters"), Settings(dead_letter_visibility_timeout=10, concurrency=1), direct=True
    )


def test_what_waits_for_its_turn_is_hidden_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A paced redrive takes longer than the hold: each letter is still ours when it is given."""
    sqs, role = showing(monkeypatch, 25)
    found = []
    for letter in role.browse():
        assert sqs.now < sqs.until[letter.position]
        found.append(letter.position)
        sqs.now += 1.5
    assert sorted(found) == sorted(sqs.until)
    assert sqs.prolonged


def test_what_came_into_sight_meanwhile_is_shown_if_it_comes_by_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not before: another may have it under lease."""
    sqs, role = showing(monkeypatch, 25)
    found: list[str] = []
    other = ""
    for letter in role.browse():
        assert sqs.now < sqs.until[letter.position]
        found.append(letter.position)
        if len(found) == 12:
            sqs.now += 60
            other = max(sqs.until.keys() - set(found))
            sqs.until[other] = sqs.now + 600
    assert sorted(found) == sorted(sqs.until.keys() - {other})


def test_a_hold_that_is_too_short_to_show_anything_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    sqs, role = showing(monkeypatch, 5)
    took = sqs.receive_message

    def slow(**asked: Any) -> Mapping[str, Any]:
        answer = took(**asked)
        sqs.now += 11
        return answer

    monkeypatch.setattr(sqs, "receive_message", slow)
    with pytest.raises(Retriable, match=r"sqs\.dead_letter_visibility_timeout"):
        list(role.browse())


class Moving:
    """An SQS with scripted move tasks: no stand-in is slow enough to show one that runs."""

    def __init__(self, *states: Mapping[str, Any]) -> None:
        self.states = list(states)
        self.started: list[Mapping[str, str]] = []
        self.sources = ["orders"]

    def get_queue_attributes(self, *, QueueUrl: str, AttributeNames: Sequence[str]) -> Mapping[str, Any]:  # noqa: N803 - SQS's own words
        assert AttributeNames == ["QueueArn"]
        return {"Attributes": {"QueueArn": f"arn:{QueueUrl}"}}

    def get_queue_url(self, *, QueueName: str) -> Mapping[str, Any]:  # noqa: N803 - SQS's own words
        return {"QueueUrl": QueueName}

    def list_message_move_tasks(self, **_: object) -> Mapping[str, Any]:
        return {"Results": [self.states.pop(0) if len(self.states) > 1 else self.states[0]]}

    def list_dead_letter_source_queues(
        self,
        **asked: Any,
    ) -> Mapping[str, Any]:
        assert (asked["QueueUrl"], asked["MaxResults"]) == ("orders-dead-letters", 1000)
        at = int(asked.get("NextToken", 0))
        more = {} if at + 1 >= len(self.sources) else {"NextToken": str(at + 1)}
        return {"queueUrls": [f"http://x/123456789012/{each}" for each in self.sources[at : at + 1]], **more}

    def start_message_move_task(self, **arns: str) -> Mapping[str, Any]:
        self.started.append(arns)
        return {}


def moving(monkeypatch: pytest.MonkeyPatch, *states: Mapping[str, Any]) -> tuple[Moving, SqsDeadLetters]:
    sqs = Moving(*states)
    monkeypatch.setattr(connections, "boto_client", lambda *_: sqs)
    monkeypatch.setattr(connections, "queue_url", lambda address, *_, **__: address.queue)
    return sqs, SqsDeadLetters(Address("orders"), Settings(), direct=False)


RUNNING = {"Status": "RUNNING", "ApproximateNumberOfMessagesMoved": 3, "ApproximateNumberOfMessagesToMove": 9}


def test_a_move_is_waited_for_and_told_where_to(monkeypatch: pytest.MonkeyPatch) -> None:
    done = {"Status": "COMPLETED", "ApproximateNumberOfMessagesMoved": 9}
    sqs, role = moving(monkeypatch, {"Status": "COMPLETED"}, RUNNING, done)
    assert role.move_back(wait=5.0) == 9
    assert sqs.started == [{"SourceArn": "arn:orders-dead-letters", "DestinationArn": "arn:orders"}]


@pytest.mark.parametrize("sources", [["orders", "billing"], ["billing", "orders", "audit"], ["billing"]])
def test_a_queue_that_others_share_is_not_moved(monkeypatch: pytest.MonkeyPatch, sources: list[str]) -> None:
    """A move has one destination, or none and then servers differ: ElasticMQ moves all to the first source."""
    sqs, role = moving(monkeypatch, {"Status": "COMPLETED"})
    sqs.sources = sources
    with pytest.raises(Fatal, match=r"'billing'.*nothing was moved: redrive with --allow-targets"):
        role.move_back(wait=5.0)
    assert not sqs.started


def test_a_queue_that_sqs_moves_nothing_into_is_moved_back(monkeypatch: pytest.MonkeyPatch) -> None:
    sqs, role = moving(monkeypatch, {}, {"Status": "COMPLETED", "ApproximateNumberOfMessagesMoved": 1})
    sqs.sources = []
    assert role.move_back(wait=5.0) == 1


def test_a_second_move_of_a_queue_is_refused_and_told_how_far_the_first_is(monkeypatch: pytest.MonkeyPatch) -> None:
    sqs, role = moving(monkeypatch, RUNNING)
    with pytest.raises(Retriable, match=r"another move task is running; about 3 of 9 are moved"):
        role.move_back(wait=5.0)
    assert not sqs.started


def test_a_move_that_takes_longer_than_the_wait_goes_on_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    _, role = moving(monkeypatch, {}, RUNNING)
    with pytest.raises(Ambiguous, match=r"still running; about 3 of 9 are moved"):
        role.move_back(wait=0.3)


def test_a_move_that_failed_is_told_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = {"Status": "FAILED", "FailureReason": "AWS.SimpleQueueService.NonExistentQueue"}
    _, role = moving(monkeypatch, {}, failed)
    with pytest.raises(Retriable, match=r"FAILED AWS.SimpleQueueService.NonExistentQueue.*the others remain"):
        role.move_back(wait=5.0)


def test_a_message_that_is_shown_twice_at_once_is_one_letter() -> None:
    """By its last receipt handle, which is the valid one."""
    answers = [{"MessageId": "1", "ReceiptHandle": handle} for handle in ("first", "last")]
    scan = Scan()
    assert scan.new(answers, 10) == [answers[1]]
    assert scan.new(answers, 10) == []


def test_the_first_letters_do_not_decide_for_all_of_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """They may be smaller than the others, and letters of one answer to each request are all kept."""
    _, role = showing(monkeypatch, 0)
    asked: list[tuple[int, int]] = []
    taken = 0

    def receive(_: Scan, wanted: int = 0) -> list[Mapping[str, Any]] | None:
        nonlocal taken
        asked.append((taken, wanted))
        count = max(10, wanted)
        taken += count
        return [{"MessageId": f"{taken}-{at}", "Body": "x"} for at in range(count)]

    monkeypatch.setattr(role, "_receive", receive)
    monkeypatch.setattr(role, "_keep_hidden", lambda *_: True)
    assert len(role._page(Scan())) == 1_000
    assert max(wanted / max(1, before) for before, wanted in asked) == 4
