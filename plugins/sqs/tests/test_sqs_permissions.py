"""The permissions that each operation needs, as in the README's table, at a server that enforces an IAM policy.

That is moto's server, in its own process, because it then denies requests of all others too. It knows actions, not on
which queue, and checks each batch request under its own name, where AWS checks the single one's (`_BATCHES`).
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import boto3
import pytest
import requests

from redelivery.contract.broker import Accept, Broker, DeadLetters, Receiver, Retry, Terminate
from redelivery.contract.message import Batch, Message
from redelivery.contract.spec import DeliverySpec
from redelivery.errors import Fatal
from redelivery.registry import connect
from redelivery_conformance.containers import free_port

REGION = "eu-west-1"
START = 60.0
SPEC = DeliverySpec(retry=3)
_BATCHES = ("SendMessage", "DeleteMessage", "ChangeMessageVisibility")
_numbers = count()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server that asks for permission; its URL."""
    port = free_port()
    with (tmp_path_factory.mktemp("moto") / "log").open("wb") as log:
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        process = subprocess.Popen(command, stdout=log, stderr=log)
    url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + START
    while True:
        try:
            requests.get(f"{url}/moto-api/", timeout=5)
            break
        except OSError:
            assert process.poll() is None, "moto's server ended"
            assert time.monotonic() < deadline
            time.sleep(0.2)
    yield url
    process.terminate()
    process.wait(30)


def enforce(server: str, *, on: bool) -> None:
    """From now on nothing is done that a policy does not allow; or all is."""
    assert requests.post(f"{server}/moto-api/reset-auth", data=b"0" if on else b"inf", timeout=10).ok


class Permitted:
    """A queue and its dead letter queue, and users with the actions that a test names."""

    def __init__(self, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.server = server
        self.name = f"queue-{next(_numbers)}"
        root = {"aws_access_key_id": "root", "aws_secret_access_key": "root"}
        self._iam = boto3.client("iam", endpoint_url=server, region_name=REGION, **root)
        self._monkeypatch = monkeypatch
        self.owner = self._connect(f"sqs:{self.name}", "root", "root")
        with self.owner.admin() as admin:
            admin.provision(SPEC)

    def user(self, *actions: str, name: str | None = None) -> Broker:
        """The queue, or another, for a user with only these permissions."""
        enforce(self.server, on=False)
        allowed = [f"sqs:{each}" for each in actions] + [f"sqs:{each}Batch" for each in actions if each in _BATCHES]
        user = f"user-{next(_numbers)}"
        self._iam.create_user(UserName=user)
        key = self._iam.create_access_key(UserName=user)["AccessKey"]
        statement = {"Effect": "Allow", "Action": ["sqs:GetQueueUrl", *allowed], "Resource": "*"}
        policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
        self._iam.put_user_policy(UserName=user, PolicyName="only", PolicyDocument=policy)
        enforce(self.server, on=True)
        return self._connect(f"sqs:{name or self.name}", key["AccessKeyId"], key["SecretAccessKey"])

    def dead_letter(self, *values: bytes) -> None:
        """Put these among the dead letters, as the owner."""
        letters = self._connect(self.owner.native_sink(), "root", "root")
        for each in values:
            put(letters, each)

    def _connect(self, url: str, key: str, secret: str) -> Broker:
        number = next(_numbers)
        self._monkeypatch.setenv(f"SECRET_{number}", secret)
        credentials = {"sqs.access_key_id": key, "sqs.secret_access_key": f"env:SECRET_{number}"}
        return connect(url, {"sqs.endpoint_url": self.server, "sqs.region": REGION, **credentials})


@pytest.fixture
def permitted(server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Permitted]:
    yield Permitted(server, monkeypatch)
    enforce(server, on=False)


def put(broker: Broker, value: bytes) -> None:
    """Send one message; raise its error."""
    with broker.sender() as sender:
        sender.send(Batch.of([Message(value=value)]), deadline=time.monotonic() + 10)
        settled = []
        while not settled:
            settled = sender.collect(1.0)
    for error in (settled[0].error, *(each.error for each in settled[0].failures)):
        if error is not None:
            raise error


def test_to_send_is_enough_to_send(permitted: Permitted) -> None:
    put(permitted.user("SendMessage"), b"v")
    enforce(permitted.server, on=False)
    with permitted.owner.admin() as admin:
        assert admin.depth() == 1


def test_a_check_asks_for_a_queue_whose_account_the_url_says_and_needs_no_right_to(permitted: Permitted) -> None:
    there, deadline = f"{permitted.server}/123456789012/", time.monotonic() + 30
    with permitted.user("SendMessage", name=there + permitted.name).sender() as sender:
        sender.check(deadline=deadline)
    with (
        permitted.user("GetQueueAttributes", name=f"{there}{permitted.name}-never-made").sender() as sender,
        pytest.raises(Fatal, match="provision it"),
    ):
        sender.check(deadline=deadline)


def test_what_receiving_needs_is_enough_to_settle_in_every_way(permitted: Permitted) -> None:
    for at in range(3):
        put(permitted.owner, b"%d" % at)
    broker = permitted.user("ReceiveMessage", "ChangeMessageVisibility", "DeleteMessage", "SendMessage")
    with broker.receiver() as receiver:
        leased = [*receiver.receive(10, wait=2)]
        while len(leased) < 3:
            leased += receiver.receive(10, wait=2)
        outcomes = (Accept(), Retry(), Terminate(Message(value=b"dead")))
        assert receiver.settle(list(zip(leased, outcomes, strict=True))) == [None] * 3


def test_to_read_attributes_is_enough_to_plan_and_to_count(permitted: Permitted) -> None:
    with permitted.user("GetQueueAttributes").admin() as admin:
        assert not admin.plan(SPEC).drift
        assert admin.depth() == 0


def test_what_applying_needs_is_enough_to_make_both_queues(permitted: Permitted) -> None:
    broker = permitted.user("GetQueueAttributes", "CreateQueue", "SetQueueAttributes", name=f"{permitted.name}-more")
    with broker.admin() as admin:
        admin.provision(SPEC)
        assert not admin.plan(SPEC).drift


def test_what_looking_needs_is_enough_to_browse_and_one_more_to_remove(
    permitted: Permitted, caplog: pytest.LogCaptureFixture
) -> None:
    permitted.dead_letter(b"a", b"b")
    looking = ("ReceiveMessage", "ChangeMessageVisibility", "GetQueueAttributes")
    with permitted.user(*looking).dead_letters() as letters:
        (position, _) = [letter.position for letter in letters.browse()]
        with pytest.raises(Fatal, match="sqs:DeleteMessage"):
            letters.purge()
    with permitted.user(*looking, "DeleteMessage").dead_letters() as letters:
        assert letters.remove([position]) == 1
        assert letters.purge() == 1
    assert not caplog.text


def test_where_letters_may_not_be_counted_a_look_says_so_and_is_no_worse(
    permitted: Permitted, caplog: pytest.LogCaptureFixture
) -> None:
    permitted.dead_letter(b"a", b"b")
    with permitted.user("ReceiveMessage", "ChangeMessageVisibility").dead_letters() as letters:
        assert len(list(letters.browse())) == 2
    assert "it needs sqs:GetQueueAttributes" in caplog.text


@pytest.mark.parametrize(
    ("action", "ask"),
    [
        ("SendMessage", lambda broker: put(broker, b"v")),
        ("ReceiveMessage", lambda broker: asked(broker.receiver, lambda role: role.receive(1, wait=0))),
        ("ReceiveMessage", lambda broker: asked(broker.dead_letters, lambda role: list(role.browse()))),
        ("GetQueueAttributes", lambda broker: asked(broker.admin, lambda role: role.depth())),
        ("GetQueueAttributes", lambda broker: asked(broker.admin, lambda role: role.plan(SPEC))),
    ],
    ids=["send", "receive", "browse", "depth", "plan"],
)
def test_an_action_that_is_denied_is_named(permitted: Permitted, action: str, ask: Callable[[Broker], object]) -> None:
    with pytest.raises(Fatal, match=f"it needs sqs:{action}"):
        ask(permitted.user())


def asked(opened: Callable[[], Any], what: Callable[[Any], object]) -> None:
    role: Receiver | DeadLetters = opened()
    with role:
        what(role)
