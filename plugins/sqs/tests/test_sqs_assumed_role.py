"""An assumed role: STS is asked for its credentials, and they sign what goes to SQS. moto's server is both."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer

import boto3
import pytest
from moto.server import ThreadedMotoServer

from redelivery.errors import BrokerError, Fatal
from redelivery_sqs.address import Address
from redelivery_sqs.client.connections import boto_client, queue_url
from redelivery_sqs.options import Settings

OWN = "own-secret-key"
SESSION = "c4nary-session-token"
ROLE = "arn:aws:iam::210987654321:role/writer"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Where STS and SQS are reached."""
    moto = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    moto.start()
    host, port = moto.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", f"http://{host}:{port}")
    yield f"http://{host}:{port}"
    moto.stop()


def made(endpoint: str, region: str = "eu-west-1") -> Settings:
    return Settings.parse(
        {
            "access_key_id": "AKIAEXAMPLE",
            "secret_access_key": OWN,
            "endpoint_url": endpoint,
            "external_id": "outside",
            "region": region,
            "role_arn": ROLE,
            "read_timeout": "10",
        }
    )


def test_a_role_is_assumed_and_its_queues_are_those_of_its_account(server: str) -> None:
    sqs = boto_client(Address("of-the-role"), made(server))
    assert "210987654321" in sqs.create_queue(QueueName="of-the-role")["QueueUrl"]
    own = boto3.client(
        "sqs",
        region_name="eu-west-1",
        endpoint_url=server,
        aws_access_key_id="AKIAEXAMPLE",
        aws_secret_access_key=OWN,
    )
    # moto's queues are the whole process's, also where the suite ran before.
    assert not own.list_queues(QueueNamePrefix="of-the-role").get("QueueUrls")
    own.close()


def test_neither_a_token_nor_a_roles_secret_is_in_the_clients_log(
    server: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        sqs = boto_client(Address("orders"), replace(made(server, "eu-north-1"), session_token=SESSION))
        sqs.create_queue(QueueName="orders")
    credentials = sqs._request_signer._credentials.get_frozen_credentials()
    assert "AssumeRole" in caplog.text, "the client's log was looked at"
    for secret in (OWN, SESSION, credentials.secret_key, credentials.token):
        assert secret not in caplog.text


def test_a_role_in_the_url_comes_before_the_option(server: str) -> None:
    address = Address.parse("sqs:orders?role_arn=arn:aws:iam::555555555555:role/other")
    assert "555555555555" in boto_client(address, made(server)).create_queue(QueueName="orders")["QueueUrl"]


def test_an_sts_that_does_not_answer_is_told_without_a_secret(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", "http://127.0.0.1:1")
    with pytest.raises(BrokerError) as caught:
        queue_url(Address("orders"), made(server, "eu-west-2"))
    assert OWN not in str(caught.value)


class Denying(BaseHTTPRequestHandler):
    """An STS that denies every role; moto's allows every role."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        text = b"<ErrorResponse><Error><Code>AccessDenied</Code><Message>not allowed</Message></Error></ErrorResponse>"
        self.send_response(403)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        """Tests are quiet."""


def test_a_role_that_may_not_be_assumed_is_told_by_its_name_and_whose_policy_it_is(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with HTTPServer(("127.0.0.1", 0), Denying) as sts:
        thread = threading.Thread(target=sts.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", f"http://127.0.0.1:{sts.server_port}")
        with pytest.raises(Fatal) as caught:
            queue_url(Address("orders"), made(server, "eu-central-1"))
        sts.shutdown()
        thread.join()
    for said in (f"assuming role {ROLE!r}", "allow sts:AssumeRole", "trust policy"):
        assert said in str(caught.value)
    assert "of the queue" not in str(caught.value)
