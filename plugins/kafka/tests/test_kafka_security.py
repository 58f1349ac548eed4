"""Credentials, TLS and rights at a node that asks for them: the right ones work, wrong ones are fatal and not shown."""

import subprocess
import time

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from redelivery.errors import BrokerError, Fatal
from redelivery.message import Batch, Message
from redelivery.plugins import connect
from redelivery.spec import NATIVE, DeliverySpec, Sink
from redelivery_conformance.harness import NotHere
from redelivery_kafka.testing import in_container

PASSWORD = "hunter2-S3cr3t"  # noqa: S105 - what must not show
PREFIXED = ResourcePatternType.PREFIXED
WRONG = "an0ther-S3cr3t"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
SPEC = DeliverySpec(dead_letter_sink=(Sink(uri=NATIVE),))


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """A CA's certificate, and a key store in PEM whose certificate it has signed."""
    folder = tmp_path_factory.mktemp("certificates")

    def openssl(*arguments):
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    new = ("req", "-newkey", "rsa:2048", "-nodes")
    openssl(*new, "-x509", "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=test CA", "-days", "2")
    openssl(*new, "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=broker")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost")
    signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "names")
    openssl("x509", "-req", "-in", "server.csr", "-out", "server.pem", *signed)
    store = (folder / "server.key").read_bytes() + (folder / "server.pem").read_bytes()
    return folder / "ca.pem", store


@pytest.fixture(scope="module")
def guarded(request, certificates):
    """A node with a listener for passwords, one for TLS, and rights."""
    environment = {
        "KAFKA_SASL_ENABLED_MECHANISMS": "PLAIN",
        "KAFKA_LISTENER_NAME_PASSWORDS_PLAIN_SASL_JAAS_CONFIG": f'{PLAIN} user_alice="{PASSWORD}";',
        "KAFKA_SSL_KEYSTORE_TYPE": "PEM",
        "KAFKA_SSL_KEYSTORE_LOCATION": "/tmp/certificates/server.pem",  # noqa: S108 - in the container
        "KAFKA_AUTHORIZER_CLASS_NAME": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "KAFKA_SUPER_USERS": "User:ANONYMOUS",
    }
    try:
        runtime = in_container(
            {"PASSWORDS": "SASL_PLAINTEXT", "CERTIFIED": "SSL"},
            environment,
            {"/tmp/certificates/server.pem": certificates[1]},  # noqa: S108 - in the container
        )
    except NotHere as error:
        if request.config.getoption("--require-brokers"):
            pytest.fail(f"--require-brokers: {error}", pytrace=False)
        pytest.skip(str(error))
    yield runtime
    runtime.close()


@pytest.fixture
def topic(guarded):
    with guarded.place() as place:
        yield place.topic


@pytest.fixture
def allow(guarded):
    """Gives alice rights; they are taken away at the end."""
    given = []

    def give(kind, name, *operations):
        rules = [
            AclBinding(kind, name, PREFIXED, "User:alice", "*", operation, AclPermissionType.ALLOW)
            for operation in operations
        ]
        for each in guarded.cluster.admin.create_acls(rules).values():
            each.result()
        given.extend(rules)
        time.sleep(0.3)  # the node learns of them a moment later

    yield give
    filters = [
        AclBindingFilter(
            each.restype, each.name, PREFIXED, each.principal, each.host, each.operation, each.permission_type
        )
        for each in given
    ]
    for each in guarded.cluster.admin.delete_acls(filters).values() if filters else ():
        each.result()


def as_alice(**others):
    return {
        "kafka.security.protocol": "sasl_plaintext",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.username": "alice",
        "kafka.sasl.password": "env:ALICE",
        **others,
    }


@pytest.fixture(autouse=True)
def password(monkeypatch):
    monkeypatch.setenv("ALICE", PASSWORD)
    monkeypatch.setenv("NOT_ALICE", WRONG)


def send(url, options):
    """Send one message; raises what is said of it."""
    with connect(url, options) as broker, broker.sender() as sender:
        deadline = time.monotonic() + 10
        sender.send(Batch.of([Message(value=b"v")]), deadline=deadline)
        settled = []
        while not settled:
            assert time.monotonic() < deadline + 1
            settled = sender.collect(0.2)
        for error in (settled[0].error, *(each.error for each in settled[0].failures)):
            if error is not None:
                raise error


def url_of(guarded, listener, topic):
    return f"kafka://127.0.0.1:{guarded.ports[listener]}/{topic}"


def test_the_right_password_and_the_right_to_write_are_enough_to_send(guarded, topic, allow):
    allow(ResourceType.TOPIC, topic, AclOperation.WRITE)
    send(url_of(guarded, "PASSWORDS", topic), as_alice())
    assert [each.value() for each in guarded.cluster.reader.left(topic, "any")] == [b"v"]


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"kafka.sasl.password": "env:NOT_ALICE"}, "_AUTHENTICATION"),
        ({"kafka.sasl.username": "mallory"}, "_AUTHENTICATION"),
        ({"kafka.sasl.mechanism": "SCRAM-SHA-256"}, "_AUTHENTICATION"),
    ],
    ids=["password", "user", "mechanism"],
)
def test_wrong_credentials_are_fatal_in_time_and_never_shown(guarded, topic, wrong, code, caplog):
    began = time.monotonic()
    url, options = url_of(guarded, "PASSWORDS", topic), as_alice(**wrong)
    with pytest.raises(Fatal) as caught:
        send(url, options)
    with connect(url, options) as broker, broker.admin() as admin, pytest.raises(Fatal) as asked:
        admin.plan(SPEC)
    assert time.monotonic() - began < 30
    for error in (caught.value, asked.value):
        assert error.code == code
        assert "check kafka.security.protocol, kafka.sasl.*" in str(error)
        for secret in (PASSWORD, WRONG):
            assert secret not in repr(error)
            assert secret not in repr(error.__cause__)
            assert secret not in caplog.text


def test_without_credentials_a_listener_that_asks_for_them_fails_in_time(guarded, topic):
    began = time.monotonic()
    with pytest.raises(BrokerError):
        send(url_of(guarded, "PASSWORDS", topic), {})
    assert time.monotonic() - began < 12


def test_without_the_right_to_write_nothing_is_sent_and_it_says_so(guarded, topic, allow):
    allow(ResourceType.TOPIC, topic, AclOperation.DESCRIBE)
    with pytest.raises(Fatal, match="no right to it: the README lists the ACLs"):
        send(url_of(guarded, "PASSWORDS", topic), as_alice())


def test_without_the_right_to_create_provisioning_says_what_another_must_run(guarded, topic, allow):
    allow(ResourceType.TOPIC, topic, AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS)
    url = url_of(guarded, "PASSWORDS", topic)
    with connect(url, as_alice()) as broker, broker.admin() as admin:
        with pytest.raises(Fatal, match=rf"kafka-topics.sh .*--create --topic {topic}-dead-letters .*retention.ms=-1"):
            admin.provision(SPEC)
        allow(ResourceType.TOPIC, topic, AclOperation.CREATE)
        admin.provision(SPEC)
        assert not admin.plan(SPEC).drift


def test_tls_works_with_the_cas_certificate_and_fails_without_it(guarded, topic, certificates):
    url = url_of(guarded, "CERTIFIED", topic)
    options = {"kafka.security.protocol": "ssl", "kafka.ssl.ca.location": str(certificates[0])}
    send(url, options)
    with pytest.raises(Fatal, match=r"kafka\.ssl"):
        send(url, {"kafka.security.protocol": "ssl"})
