"""How to obtain this broker for a test: ElasticMQ in a container, moto's server in this process, or an endpoint.

It needs the extra `testing`. `reading.py` reads stored messages without the plugin's code.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import boto3
from botocore.config import Config

from redelivery.contract.message import Message
from redelivery.contract.spec import DeliverySpec
from redelivery.kit.options import resolve_secrets
from redelivery_conformance.containers import Container
from redelivery_conformance.harness import CannotShow, Foreign, Harness, NotHere, Outage, Place, Runtime, RuntimeKind
from redelivery_conformance.proxy import Proxy
from redelivery_conformance.subject import Subject
from redelivery_sqs import connect
from redelivery_sqs.address import Address
from redelivery_sqs.testing import reading

IMAGE: Final = "softwaremill/elasticmq-native:1.6.14"
_PORT = 9324
_READY_SECONDS = 60.0
_FIFO = ".fifo"

_TRACED: Final = "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1"
#: Nine of the ten attributes that SQS allows: a redrive's own needs one.
_FOREIGN: Final[Mapping[str, Any]] = {
    "count": {"DataType": "Number", "StringValue": "7"},
    "price": {"DataType": "Number", "StringValue": "7.50"},
    "retries": {"DataType": "Number.int", "StringValue": "3"},
    "source": {"DataType": "String", "StringValue": "billing"},
    "url": {"DataType": "String.uri", "StringValue": "https://theirs.example/ä"},
    "signature": {"DataType": "Binary", "BinaryValue": b"\0\xff"},
    "text": {"DataType": "Binary", "BinaryValue": b"text"},
    "thumbnail": {"DataType": "Binary.gif", "BinaryValue": b"GIF89a"},
    "zone": {"DataType": "String", "StringValue": "eu"},
}

_STAND_IN = ("Amazon SQS itself: this is a stand-in", "KMS keys, IAM policies, throttling: it has none")


class SqsPlace(Place):
    """A queue for one test, with its dead letter queue, both made by provisioning."""

    lease = 1.0

    def __init__(self, runtime: SqsRuntime, queue: str) -> None:
        self._runtime = runtime
        self._sqs = runtime.sqs
        self.queue = queue
        self.options: Mapping[str, str] = {**runtime.options, "sqs.message_group": "*"}
        self.url = runtime.address(queue).url
        self.patience = runtime.patience
        self.many = runtime.many
        stem, fifo, _ = queue.partition(_FIFO)
        self._made = [queue, f"{stem}-dead-letters{fifo}"]
        with connect(self.url, _plugin_options(self.options)) as broker, broker.admin() as admin:
            admin.provision(DeliverySpec())

    def stored(self, destination: str | None = None) -> Sequence[Message]:
        return self._runtime.read(destination or self.queue)

    def snapshot(self) -> object:
        names = sorted(each for each in self._made if self._url(each))
        return [(name, self._attributes(name), self._runtime.read(name)) for name in names]

    def consumed(self) -> Sequence[Message]:
        """Take the messages away: the only way to see all messages of a FIFO queue's group, in their order."""
        return reading.by_consuming(self._sqs, self.queue)

    def logins(self, secret: str) -> Iterator[Mapping[str, str]]:
        own = {**self.options, "sqs.access_key_id": "AKIAIOSFODNN7EXAMPLE", "sqs.secret_access_key": secret}
        yield own
        yield {**own, "sqs.session_token": secret}
        yield {**own, "sqs.role_arn": "arn:aws:iam::123456789012:role/orders", "sqs.external_id": secret}
        proxy = f"http://someone:{quote(secret, safe='')}@127.0.0.1:1"
        yield {**own, "sqs.proxies": json.dumps({"http": proxy, "https": proxy})}

    def unreachable(self) -> str:
        return f"sqs:{self.queue}?endpoint_url=http%3A//127.0.0.1%3A1&region=eu-west-1"

    def destination(self, label: str) -> str:
        return self._create(label)

    def sharing(self, label: str) -> str:
        """Make another queue with this one's redrive policy; return its name."""
        return self._create(label, RedrivePolicy=self._attributes(self.queue)["RedrivePolicy"])

    def _create(self, label: str, **attributes: str) -> str:
        stem, fifo, _ = self.queue.partition(_FIFO)
        name = f"{stem}-{label}{fifo}"
        self._sqs.create_queue(QueueName=name, Attributes={**attributes, **({"FifoQueue": "true"} if fifo else {})})
        self._made.append(name)
        return name

    def impossible_destination(self) -> str | None:
        stem, fifo, _ = self.queue.partition(_FIFO)
        return f"{stem}-is-not-there{fifo}"

    @property
    def outage_url(self) -> str:
        proxy, region = self._runtime.proxy, self.options.get("sqs.region")
        if proxy is None:
            return self.url
        return f"sqs:{self.queue}?endpoint_url=http%3A//127.0.0.1%3A{proxy.port}&region={region}"

    def outage(self, kind: Outage = "refused") -> AbstractContextManager[None]:
        if self._runtime.proxy is None:
            raise CannotShow(f"an outage, {kind}: this server is not ours to cut off")
        return self._runtime.proxy.outage(kind)

    def vanish(self) -> None:
        self._sqs.delete_queue(QueueUrl=self._url(self.queue))

    def alter(self) -> None:
        """Point its redrive policy at another queue."""
        other = self.destination("elsewhere")
        arn = self._attributes(other)["QueueArn"]
        self._redrive(deadLetterTargetArn=arn)

    def limiting(self, deliveries: int) -> Mapping[str, str]:
        self._redrive(maxReceiveCount=deliveries)
        return {}

    def _redrive(self, **changes: object) -> None:
        policy = {**json.loads(self._attributes(self.queue)["RedrivePolicy"]), **changes}
        url = self._url(self.queue)
        self._sqs.set_queue_attributes(QueueUrl=url, Attributes={"RedrivePolicy": json.dumps(policy)})

    def forgetting(self, seconds: float) -> Mapping[str, str]:
        return {"sqs.dead_letter_visibility_timeout": str(max(3, int(seconds)))}

    def damage(self) -> None:
        attributes = {"redelivery": {"DataType": "String", "StringValue": "{oops"}}
        more = {"MessageGroupId": "g", "MessageDeduplicationId": "d"} if self.queue.endswith(_FIFO) else {}
        url = self._url(self.queue)
        self._sqs.send_message(QueueUrl=url, MessageBody="damaged", MessageAttributes=attributes, **more)

    def put_foreign(self, *, dead: bool) -> Foreign:
        """SQS itself moves a letter: it has been received too often."""
        url = self._url(self.queue)
        given: dict[str, Any] = {"MessageBody": '{"theirs": 1}\n', "MessageAttributes": _FOREIGN}
        given["MessageGroupId"] = "their-tenant"
        if self.queue.endswith(_FIFO):
            given["MessageDeduplicationId"] = "theirs-1"
        if self._runtime.keeps_trace:
            given["MessageSystemAttributes"] = {"AWSTraceHeader": {"DataType": "String", "StringValue": _TRACED}}
        self._sqs.send_message(QueueUrl=url, **given)
        if dead:
            policy = json.loads(self._attributes(self.queue)["RedrivePolicy"])
            self._redrive(maxReceiveCount=1)
            while not self.foreign(dead=True):
                self._sqs.receive_message(QueueUrl=url, VisibilityTimeout=0)
            self._redrive(**policy)
        return _foreign(given["MessageBody"], _FOREIGN, _TRACED if self._runtime.keeps_trace else None, "their-tenant")

    def foreign(self, *, dead: bool) -> Sequence[Foreign]:
        return [
            _foreign(
                each["Body"],
                each.get("MessageAttributes", {}),
                each["Attributes"].get("AWSTraceHeader"),
                each["Attributes"].get("MessageGroupId"),
            )
            for each in reading.as_stored(self._sqs, self._made[dead])
        ]

    def raw(self) -> Sequence[Mapping[str, Any]]:
        """Return the messages of the queue as boto3 gives them."""
        return reading.as_stored(self._sqs, self.queue)

    def close(self) -> None:
        for name in self._made:
            with suppress(Exception):  # a test may have removed it, or stopped the server
                self._sqs.delete_queue(QueueUrl=self._url(name))

    def _url(self, queue: str) -> str:
        return reading.url(self._sqs, queue)

    def _attributes(self, queue: str) -> dict[str, str]:
        found = self._sqs.get_queue_attributes(QueueUrl=self._url(queue), AttributeNames=["All"])["Attributes"]
        return {name: value for name, value in found.items() if not name.startswith("Approximate")}


def _foreign(body: str, attributes: Mapping[str, Any], trace: str | None, group: str | None) -> Foreign:
    def value(attribute: Mapping[str, Any]) -> tuple[str, object]:
        text = attribute.get("StringValue")
        return attribute["DataType"], attribute["BinaryValue"] if text is None else text

    values = {name: value(attribute) for name, attribute in attributes.items()}
    return Foreign(values, {"body": body, "trace": trace, "group": group})


def consumed(subject: Subject) -> Sequence[Message]:
    """`SqsPlace.consumed` of a statement's place."""
    place = subject.place
    if not isinstance(place, SqsPlace):
        raise TypeError(place)
    return place.consumed()


class SqsRuntime(Runtime):
    """An SQS server.

    Args:
        kind: container, embedded or url.
        description: one line.
        options: those with which the plugin reaches it.
        fifo: whether its places are FIFO queues.
        beside: the queue of a URL; places are made in the same account and region.
    """

    def __init__(
        self,
        kind: RuntimeKind,
        description: str,
        options: Mapping[str, str],
        *,
        fifo: bool,
        beside: Address | None = None,
    ) -> None:
        self.kind = kind
        self.description = description + (", FIFO queues" if fifo else "")
        self.options = dict(options)
        self.proxy: Proxy | None = None
        self.patience = 10.0
        self.many = 1000
        self.keeps_trace = True
        self.sqs = self._client(beside)
        self._fifo = fifo
        self._beside = beside

    def address(self, queue: str) -> Address:
        """The address of a queue."""
        return self._beside.sibling(queue) if self._beside else Address(queue)

    def place(self) -> SqsPlace:
        stem = self._beside.queue.removesuffix(_FIFO)[:40] if self._beside else "rd"
        return SqsPlace(self, self.fresh_name(stem) + (_FIFO if self._fifo else ""))

    def read(self, queue: str) -> Sequence[Message]:
        """The messages in a queue."""
        return reading.by_receiving(self.sqs, queue)

    def _client(self, address: Address | None) -> Any:
        option = _plugin_options(self.options).get
        return boto3.Session(profile_name=(address and address.profile) or option("profile")).client(
            "sqs",
            region_name=(address and address.region) or option("region"),
            endpoint_url=(address and address.endpoint) or option("endpoint_url"),
            aws_access_key_id=option("access_key_id"),
            aws_secret_access_key=option("secret_access_key"),
            aws_session_token=option("session_token"),
            config=Config(connect_timeout=5, read_timeout=25),
        )


class ElasticMq(SqsRuntime):
    """ElasticMQ in a container."""

    cannot_show: Sequence[str] = _STAND_IN

    def __init__(self, container: Container, scratch: Path, *, fifo: bool) -> None:
        self.container = container
        options = _options(f"http://{container.host}:{container.port(_PORT)}", "elasticmq", scratch)
        # ElasticMQ, strict, keeps SQS's old limit.
        super().__init__(
            "container", f"ElasticMQ, {container.image}", {**options, "sqs.max_message_bytes": "262144"}, fifo=fifo
        )
        self.proxy: Proxy = Proxy(container.host, container.port(_PORT))
        container.wait(lambda: self.sqs.list_queues(MaxResults=1), _READY_SECONDS)
        if fifo:
            self.many = 100
            slow = "large FIFO queues: ElasticMQ takes seconds per request while hundreds of groups are under lease"
            self.cannot_show = (*_STAND_IN, slow)
            nothing = "ElasticMQ answers to a FIFO queue's move task that it is done, and moves nothing"
            self.gaps = {"a_broker_moves_all_letters_back_by_itself*": nothing}

    def close(self) -> None:
        self.sqs.close()
        self.proxy.close()
        self.container.close()


class Moto(SqsRuntime):
    """moto's server, in a thread of this process."""

    cannot_show: Sequence[str] = _STAND_IN
    gaps: Mapping[str, str] = {
        "a_broker_moves_all_letters_back_by_itself*": "moto answers 500 to the move tasks that AWS has",
        "an_id_stays_taken_when_its_message_is_removed*": "moto forgets a de-duplication id with its message",
    }
    absent: Mapping[str, str] = {"competing_consumers": "moto gives one message to two requests of the same moment"}

    def __init__(self, scratch: Path, *, fifo: bool) -> None:
        try:
            import moto  # noqa: PLC0415 - an extra
            from moto.server import ThreadedMotoServer  # noqa: PLC0415 - an extra
        except ImportError:
            raise NotHere("pip install 'moto[server]'") from None
        self._server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        self._server.start()
        host, port = self._server.get_host_and_port()
        # Two requests of the same moment may get one message, and a receiver makes several where it may.
        busy = {"sqs.concurrency": "1", "sqs.read_timeout": "10"}
        options = {**_options(f"http://{host}:{port}", "eu-west-1", scratch), **busy}
        super().__init__("embedded", f"moto {moto.__version__}'s server in this process", options, fifo=fifo)
        self.proxy: Proxy = Proxy(host, port)
        self.many = 50
        self.keeps_trace = False  # of a message in a batch
        if fifo:
            self.patience = 30.0
            slow = "large FIFO queues: moto takes seconds per request beyond a hundred messages"
            self.cannot_show = (*_STAND_IN, slow)

    def read(self, queue: str) -> Sequence[Message]:
        return reading.of_moto(queue)

    def close(self) -> None:
        self.sqs.close()
        self.proxy.close()
        self._server.stop()


class SqsHarness(Harness):
    """Standard queues."""

    name = "sqs"
    fifo = False

    def starts(self) -> Mapping[RuntimeKind, Callable[[Path], Runtime]]:
        return {
            "container": lambda scratch: ElasticMq(Container("sqs", IMAGE, ports=[_PORT]), scratch, fifo=self.fifo),
            "embedded": lambda scratch: Moto(scratch, fifo=self.fifo),
        }

    def at(self, url: str, options: Mapping[str, str], scratch: Path) -> Runtime:  # noqa: ARG002 - needs no folder
        address = Address.parse(url)
        shown = address.endpoint or options.get("sqs.endpoint_url") or "AWS"
        return SqsRuntime("url", f"SQS at {shown}", options, fifo=self.fifo, beside=address)


class SqsFifoHarness(SqsHarness):
    """FIFO queues, only on the container: there they are as fast as standard queues."""

    fifo = True

    def starts(self) -> Mapping[RuntimeKind, Callable[[Path], Runtime]]:
        """Leave out the embedded server: it takes seconds for ten messages behind some hundred others."""
        return {kind: begin for kind, begin in super().starts().items() if kind != "embedded"}


def _plugin_options(options: Mapping[str, str]) -> dict[str, str]:
    """Options as core hands them to the plugin: without their prefix, secrets resolved."""
    return {name.removeprefix("sqs."): value for name, value in resolve_secrets(options).items()}


def _options(endpoint: str, region: str, scratch: Path) -> dict[str, str]:
    secret = scratch / "secret"
    secret.write_text("test")  # by reference, as Spark asks for
    return {
        "sqs.endpoint_url": endpoint,
        "sqs.region": region,
        "sqs.access_key_id": "test",
        "sqs.secret_access_key": f"file:{secret}",
        "sqs.connect_timeout": "2",
        "sqs.read_timeout": "5",
    }
