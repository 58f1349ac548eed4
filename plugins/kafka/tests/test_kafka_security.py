"""Credentials, TLS and rights at a node that asks for them: the right ones work, wrong ones are fatal and not shown."""

import base64
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
import trustme
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from cryptography.hazmat.primitives import serialization

from redelivery.contract.broker import Terminate
from redelivery.contract.message import Batch, Message
from redelivery.contract.spec import NATIVE, DeliverySpec, Sink
from redelivery.errors import BrokerError, Fatal
from redelivery.registry import connect
from redelivery.sending import preflight
from redelivery_conformance.harness import NotHere
from redelivery_conformance.plugin import not_here
from redelivery_kafka.address import GROUP_PREFIX
from redelivery_kafka.client.producer import ProducerInstance
from redelivery_kafka.client.removed import REMOVED
from redelivery_kafka.testing import in_container

PASSWORD = "hunter2-S3cr3t"  # noqa: S105 - what must not show
LITERAL = ResourcePatternType.LITERAL
WRONG = "an0ther-S3cr3t"
FOLDER = "/tmp/guarded"  # noqa: S108 - in the container
SECURITY = "org.apache.kafka.common.security"
#: Credentials that the node accepts: the password of one user, SCRAM passwords, and unsigned tokens.
JAAS = f"""
passwords.KafkaServer {{
  {SECURITY}.plain.PlainLoginModule required user_alice="{PASSWORD}";
  {SECURITY}.scram.ScramLoginModule required;
}};
tokens.KafkaServer {{
  {SECURITY}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="node";
}};
"""
SPEC = DeliverySpec(dead_letter_sink=(Sink(uri=NATIVE),))


@pytest.fixture(scope="module")
def authority():
    return trustme.CA()


@pytest.fixture(scope="module")
def guarded(request, authority):
    """A node with a listener for passwords, one for tokens, one for TLS, and rights."""
    server = authority.issue_cert("localhost", "127.0.0.1")
    environment = {
        "KAFKA_LISTENER_NAME_PASSWORDS_SASL_ENABLED_MECHANISMS": "PLAIN,SCRAM-SHA-256",
        "KAFKA_LISTENER_NAME_TOKENS_SASL_ENABLED_MECHANISMS": "OAUTHBEARER",
        "KAFKA_OPTS": f"-Djava.security.auth.login.config={FOLDER}/jaas.conf",
        "KAFKA_SSL_KEYSTORE_TYPE": "PEM",
        "KAFKA_SSL_KEYSTORE_LOCATION": f"{FOLDER}/server.pem",
        "KAFKA_AUTHORIZER_CLASS_NAME": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "KAFKA_SUPER_USERS": "User:ANONYMOUS",
    }
    key = serialization.load_pem_private_key(server.private_key_pem.bytes(), None).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )  # Java takes no other form
    store = key + server.cert_chain_pems[0].bytes()
    files = {f"{FOLDER}/jaas.conf": JAAS.encode(), f"{FOLDER}/server.pem": store}
    listeners = {"PASSWORDS": "SASL_PLAINTEXT", "TOKENS": "SASL_PLAINTEXT", "CERTIFIED": "SSL"}
    try:
        runtime = in_container(listeners, environment, files)
    except NotHere as error:
        not_here(request.config, error)
    yield runtime
    runtime.close()


@pytest.fixture
def topic(guarded):
    with guarded.place() as place:
        yield place.topic


@pytest.fixture
def letters_of(guarded, topic):
    """The topic's dead letter topic, created by a user who may."""
    with connect(f"kafka://{guarded.cluster.bootstrap}/{topic}") as broker, broker.admin() as admin:
        admin.provision(SPEC)
    return f"{topic}-dead-letters"


@pytest.fixture
def allow(guarded):
    """Gives alice rights; they are taken away at the end."""
    given = []

    def give(kind, name, *operations):
        rules = [
            AclBinding(kind, name, LITERAL, "User:alice", "*", operation, AclPermissionType.ALLOW)
            for operation in operations
        ]
        for each in guarded.cluster.admin.create_acls(rules).values():
            each.result()
        given.extend(rules)
        known(guarded, lambda found: set(rules) <= found)

    yield give
    filters = [
        AclBindingFilter(
            each.restype, each.name, LITERAL, each.principal, each.host, each.operation, each.permission_type
        )
        for each in given
    ]
    for each in guarded.cluster.admin.delete_acls(filters).values() if filters else ():
        each.result()
    known(guarded, lambda found: not found & set(given))


def known(guarded, right):
    """Wait until the node itself knows of rights that were given or taken: it learns of them a moment later."""
    every = AclBindingFilter(
        ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
    )
    deadline = time.monotonic() + 30
    while not right(set(guarded.cluster.admin.describe_acls(every).result())):
        assert time.monotonic() < deadline
        time.sleep(0.05)


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
    """Send one message; raise its error."""
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
    with pytest.raises(Fatal) as looked:
        preflight(url, SPEC, options=options)
    assert time.monotonic() - began < 30
    for error in (caught.value, asked.value, looked.value):
        assert error.native_code == code
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
    with pytest.raises(Fatal, match="lacks the permission: the README lists the ACLs"):
        send(url_of(guarded, "PASSWORDS", topic), as_alice())


def test_a_refusal_that_comes_while_the_topic_is_looked_up_is_as_fatal(guarded, topic, allow, monkeypatch):
    """The producer is told that it may not write, before its first row is handed over."""
    looked_up = ProducerInstance.missing_topics

    def slow(producer, names, deadline):
        missing = looked_up(producer, names, deadline)
        while producer.fatal_error is None:
            assert time.monotonic() < deadline
            producer.poll(0.1)
        return missing

    monkeypatch.setattr(ProducerInstance, "missing_topics", slow)
    allow(ResourceType.TOPIC, topic, AclOperation.DESCRIBE)
    with pytest.raises(Fatal, match="lacks the permission: the README lists the ACLs"):
        send(url_of(guarded, "PASSWORDS", topic), as_alice())


def test_without_the_right_to_create_provisioning_says_what_another_must_run(guarded, topic, allow):
    for each in (topic, f"{topic}-dead-letters"):
        allow(ResourceType.TOPIC, each, AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS)
    url = url_of(guarded, "PASSWORDS", topic)
    with connect(url, as_alice()) as broker, broker.admin() as admin:
        with pytest.raises(Fatal, match=rf"kafka-topics.sh .*--create --topic {topic}-dead-letters .*retention.ms=-1"):
            admin.provision(SPEC)
        allow(ResourceType.TOPIC, f"{topic}-dead-letters", AclOperation.CREATE)
        admin.provision(SPEC)
        assert not admin.plan(SPEC).drift


def one(receiver):
    """The next message, waited for as long as a new member is."""
    deadline = time.monotonic() + 20
    while not (found := receiver.receive(1, wait=1)):
        assert time.monotonic() < deadline
    return found[0]


def test_the_rights_to_receive_are_enough_to_settle_and_to_dead_letter(guarded, topic, letters_of, allow):
    url = url_of(guarded, "PASSWORDS", topic)
    send(f"kafka://{guarded.cluster.bootstrap}/{topic}", {})
    allow(ResourceType.TOPIC, topic, AclOperation.READ)
    allow(ResourceType.GROUP, GROUP_PREFIX + topic, AclOperation.READ)
    allow(ResourceType.TOPIC, letters_of, AclOperation.WRITE)
    with connect(url, as_alice()) as broker, broker.receiver() as receiver:
        assert receiver.settle([(one(receiver), Terminate(Message(value=b"v")))]) == [None]
    assert [each.value() for each in guarded.cluster.reader.left(letters_of, "any")] == [b"v"]


def test_the_rights_to_look_are_enough_to_browse_and_one_more_to_remove(guarded, topic, letters_of, allow):
    url = url_of(guarded, "PASSWORDS", topic)
    send(f"kafka://{guarded.cluster.bootstrap}/{letters_of}", {})
    allow(ResourceType.TOPIC, letters_of, AclOperation.READ)
    allow(ResourceType.GROUP, letters_of + REMOVED, AclOperation.DESCRIBE)
    with connect(url, as_alice()) as broker, broker.dead_letters() as letters:
        (letter,) = letters.browse()
        assert letter.message.value == b"v"
        with pytest.raises(Fatal, match="lacks the permission"):
            letters.remove([letter.position])
        allow(ResourceType.GROUP, letters_of + REMOVED, AclOperation.READ)
        assert letters.remove([letter.position]) == 1
        assert not list(letters.browse())


def test_the_rights_to_describe_are_enough_for_the_depth(guarded, topic, allow):
    send(f"kafka://{guarded.cluster.bootstrap}/{topic}", {})
    allow(ResourceType.TOPIC, topic, AclOperation.DESCRIBE)
    allow(ResourceType.GROUP, GROUP_PREFIX + topic, AclOperation.DESCRIBE)
    with connect(url_of(guarded, "PASSWORDS", topic), as_alice()) as broker, broker.admin() as admin:
        assert admin.depth() == 1


def test_scram_proves_a_password_that_is_not_sent(guarded, topic, allow):
    stored = UserScramCredentialUpsertion(
        "alice", ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096), PASSWORD.encode()
    )
    for each in guarded.cluster.admin.alter_user_scram_credentials([stored]).values():
        each.result()
    allow(ResourceType.TOPIC, topic, AclOperation.WRITE)
    url, scram = url_of(guarded, "PASSWORDS", topic), {"kafka.sasl.mechanism": "SCRAM-SHA-256"}
    send(url, as_alice(**scram))
    assert [each.value() for each in guarded.cluster.reader.left(topic, "any")] == [b"v"]
    with pytest.raises(Fatal, match=r"kafka\.sasl"):
        send(url, as_alice(**scram, **{"kafka.sasl.password": "env:NOT_ALICE"}))


class Tokens(BaseHTTPRequestHandler):
    """An endpoint that gives alice a token, for her client secret and nothing else."""

    def do_POST(self):
        asked = self.rfile.read(int(self.headers["Content-Length"])).decode()
        known = base64.b64encode(f"alice:{PASSWORD}".encode()).decode()
        right = self.headers["Authorization"] == f"Basic {known}" and "grant_type=client_credentials" in asked
        now = int(time.time())
        parts = ({"alg": "none"}, {"sub": "alice", "iat": now, "exp": now + 300})
        token = ".".join(base64.urlsafe_b64encode(json.dumps(each).encode()).decode().rstrip("=") for each in parts)
        answer = {"access_token": f"{token}.", "token_type": "Bearer"} if right else {"error": "invalid_client"}
        self.send_response(200 if right else 401)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *_):
        """Say nothing."""


@pytest.fixture
def tokens():
    """Options by which tokens are fetched."""
    with HTTPServer(("127.0.0.1", 0), Tokens) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield {
            "kafka.security.protocol": "sasl_plaintext",
            "kafka.sasl.mechanism": "OAUTHBEARER",
            "kafka.sasl.oauthbearer.method": "oidc",
            "kafka.sasl.oauthbearer.token.endpoint.url": f"http://127.0.0.1:{server.server_port}/token",
            "kafka.sasl.oauthbearer.client.id": "alice",
            "kafka.sasl.oauthbearer.client.secret": "env:ALICE",
        }
        server.shutdown()
        thread.join()


def test_a_token_that_is_fetched_by_client_credentials_opens_the_door(guarded, topic, allow, tokens):
    allow(ResourceType.TOPIC, topic, AclOperation.WRITE)
    send(url_of(guarded, "TOKENS", topic), tokens)
    assert [each.value() for each in guarded.cluster.reader.left(topic, "any")] == [b"v"]


def test_without_a_token_the_job_fails_in_time_and_the_secret_is_not_shown(guarded, topic, tokens, caplog):
    began = time.monotonic()
    with pytest.raises(BrokerError, match=r"(?i)oauth|token") as caught:
        send(url_of(guarded, "TOKENS", topic), {**tokens, "kafka.sasl.oauthbearer.client.secret": "env:NOT_ALICE"})
    assert time.monotonic() - began < 12
    assert WRONG not in f"{caught.value!r} {caught.value.__cause__!r} {caplog.text}"


def test_tls_works_with_the_authoritys_certificate_and_fails_without_it(guarded, topic, authority, tmp_path):
    url = url_of(guarded, "CERTIFIED", topic)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    options = {"kafka.security.protocol": "ssl", "kafka.ssl.ca.location": str(tmp_path / "ca.pem")}
    send(url, options)
    with pytest.raises(Fatal, match=r"kafka\.ssl"):
        send(url, {"kafka.security.protocol": "ssl"})
