"""TLS, and login by certificate: right settings work, wrong ones fail in time and are named."""

import ssl
import time

import pika
import pytest
import trustme

from redelivery.contract.message import Batch, Message
from redelivery.contract.spec import DeliverySpec
from redelivery.errors import BrokerError, Fatal
from redelivery.registry import connect
from redelivery_conformance.containers import Container
from redelivery_conformance.harness import NotHere
from redelivery_conformance.plugin import not_here
from redelivery_rabbitmq.testing import IMAGE, START
from redelivery_rabbitmq.testing.reading import Cluster

PLAIN, TLS = 5672, 5671
FOLDER = "/tmp/tls"  # noqa: S108 - in the container
CONFIGURATION = f"""
loopback_users = none
listeners.ssl.default = {TLS}
ssl_options.cacertfile = {FOLDER}/ca.pem
ssl_options.certfile = {FOLDER}/server.pem
ssl_options.keyfile = {FOLDER}/server.key
ssl_options.verify = verify_peer
ssl_options.fail_if_no_peer_cert = false
ssl_cert_login_from = common_name
auth_mechanisms.1 = EXTERNAL
auth_mechanisms.2 = PLAIN
"""


@pytest.fixture(scope="module")
def authority():
    return trustme.CA()


@pytest.fixture(scope="module")
def guarded(request, authority):
    """A node that speaks TLS too, and knows the user `spark`, who has no password."""
    server = authority.issue_cert("127.0.0.1", "localhost")
    files = {
        f"{FOLDER}/rabbitmq.conf": CONFIGURATION.encode(),
        f"{FOLDER}/enabled_plugins": b"[rabbitmq_auth_mechanism_ssl].\n",
        f"{FOLDER}/ca.pem": authority.cert_pem.bytes(),
        f"{FOLDER}/server.pem": server.cert_chain_pems[0].bytes(),
        f"{FOLDER}/server.key": server.private_key_pem.bytes(),
    }
    environment = {
        "RABBITMQ_CONFIG_FILE": f"{FOLDER}/rabbitmq.conf",
        "RABBITMQ_ENABLED_PLUGINS_FILE": f"{FOLDER}/enabled_plugins",
    }
    try:
        container = Container("rabbitmq", IMAGE, ports=[PLAIN, TLS], environment=environment, files=files)
        cluster = Cluster(pika.ConnectionParameters(host=container.host, port=container.port(PLAIN), socket_timeout=5))
        container.wait(lambda: cluster.greets() and cluster.version(), START)
    except NotHere as error:
        not_here(request.config, error)
    container.execute("rabbitmqctl", "add_user", "spark", "of no use")
    container.execute("rabbitmqctl", "clear_password", "spark")
    container.execute("rabbitmqctl", "set_permissions", "spark", ".*", ".*", ".*")
    yield container
    container.close()


@pytest.fixture
def trusted(authority, tmp_path):
    """Options by which the node's certificate is checked."""
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    return {"rabbitmq.ssl.ca": str(tmp_path / "ca.pem"), "rabbitmq.connection_timeout": "5"}


@pytest.fixture
def certified(authority, tmp_path):
    """Makes the options that present a certificate of this name."""

    def certificate(name, issuer=authority):
        ours = issuer.issue_cert("a.host", common_name=name)  # the broker wants a host in it
        ours.cert_chain_pems[0].write_to_path(tmp_path / "ours.pem")
        ours.private_key_pem.write_to_path(tmp_path / "ours.key")
        return {"rabbitmq.ssl.cert": str(tmp_path / "ours.pem"), "rabbitmq.ssl.key": str(tmp_path / "ours.key")}

    return certificate


def send(url, options):
    """Create the queue and send one message; raise its error."""
    with connect(url, options) as broker:
        with broker.admin() as admin:
            admin.provision(DeliverySpec())
        with broker.sender() as sender:
            deadline = time.monotonic() + 10
            sender.send(Batch.of([Message(value=b"v")]), deadline=deadline)
            settled = []
            while not settled and time.monotonic() < deadline:
                settled = sender.collect(0.2)
            assert not settled[0].failures
            assert settled[0].error is None


def url_of(guarded, port=TLS, host="127.0.0.1", scheme="amqps"):
    return f"{scheme}://{host}:{guarded.port(port)}?queue=orders"


def test_tls_with_the_authoritys_certificate_carries_messages(guarded, trusted):
    send(url_of(guarded), trusted)


@pytest.mark.parametrize(
    "wrong",
    [{}, {"rabbitmq.ssl.server_name": "another.example"}],
    ids=["an unknown authority", "a name that it does not bear"],
)
def test_a_certificate_that_is_not_trusted_is_fatal_and_names_the_setting(guarded, trusted, wrong):
    began = time.monotonic()
    with pytest.raises(Fatal, match=r"rabbitmq\.ssl") as caught:
        send(url_of(guarded), {**(trusted if wrong else {}), **wrong})
    assert time.monotonic() - began < 10
    causes = [caught.value]
    while causes[-1].__cause__ is not None:
        causes.append(causes[-1].__cause__)
    assert isinstance(causes[-1], ssl.SSLCertVerificationError)


def test_a_user_without_password_logs_in_by_certificate(guarded, trusted, certified):
    send(url_of(guarded), {**trusted, "rabbitmq.auth": "EXTERNAL", **certified("spark")})


@pytest.mark.parametrize("name", ["nobody", None], ids=["a user that is not there", "no certificate"])
def test_a_certificate_that_names_no_user_is_refused_and_told(guarded, trusted, certified, name):
    with pytest.raises(Fatal, match="EXTERNAL"):
        send(url_of(guarded), {**trusted, "rabbitmq.auth": "EXTERNAL", **(certified(name) if name else {})})


def test_a_certificate_of_another_authority_is_fatal_and_names_the_setting(guarded, trusted, certified):
    began = time.monotonic()
    with pytest.raises(Fatal, match=r"rabbitmq\.ssl\.cert"):
        send(url_of(guarded), {**trusted, "rabbitmq.auth": "EXTERNAL", **certified("spark", trustme.CA())})
    assert time.monotonic() - began < 12


def test_tls_at_a_port_that_does_not_speak_it_is_told_in_time(guarded, trusted):
    began = time.monotonic()
    with pytest.raises(BrokerError):
        send(url_of(guarded, PLAIN), trusted)
    assert time.monotonic() - began < 12


def test_no_tls_at_a_port_that_wants_it_is_told_in_time(guarded):
    began = time.monotonic()
    with pytest.raises(BrokerError):
        send(url_of(guarded, scheme="amqp"), {"rabbitmq.connection_timeout": "5"})
    assert time.monotonic() - began < 12
