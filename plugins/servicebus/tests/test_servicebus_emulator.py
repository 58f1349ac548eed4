"""Microsoft's emulator, as its documentation has it: AMQP on one port, administration on another, both without TLS."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from redelivery.contract.spec import DeliverySpec, Sink
from redelivery.errors import ConfigurationError
from redelivery.registry import connect
from redelivery_servicebus.testing import CONNECTION_STRING
from servicebus_standin import StandIn

SPEC = DeliverySpec(retry=3, dead_letter_sink=(Sink(uri="native"),))


@pytest.fixture
def server() -> Iterator[StandIn]:
    with StandIn(admin_port=0) as made:
        yield made


def options(server: StandIn, tmp_path: Path) -> dict[str, str]:
    secret = tmp_path / "connection-string"
    secret.write_text(server.connection_string)
    return {CONNECTION_STRING: f"file:{secret}", "servicebus.admin_port": str(server.admin_port)}


def test_queues_are_provisioned_over_the_administrations_own_port(server: StandIn, tmp_path: Path) -> None:
    url = f"servicebus://{server.namespace}/orders"
    with connect(url, options(server, tmp_path)) as broker, broker.admin() as admin:
        admin.provision(SPEC)
        assert {item.action for item in admin.plan(SPEC).objects} == {"keep"}
        assert broker.native_sink() == f"{url}-dead-letters"
    assert server.queue_names() == ["orders", "orders-dead-letters"]


def test_only_an_emulator_has_such_a_port() -> None:
    given = {"servicebus.sas_key_name": "k", "servicebus.sas_key": "c2VjcmV0", "servicebus.admin_port": "5300"}
    with pytest.raises(ConfigurationError, match="UseDevelopmentEmulator"):
        connect("servicebus://orders.servicebus.windows.net/incoming", given)
