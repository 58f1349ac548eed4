"""One queue at SQS: the requests that the roles make, with SQS's errors classified."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from redelivery.errors import BrokerError
from redelivery_sqs.address import Address
from redelivery_sqs.client import connections
from redelivery_sqs.client.batch_requests import Answer, answers_by_entry, request_each, side_by_side
from redelivery_sqs.errors import TABLE
from redelivery_sqs.options import Settings

_ALL: Final = ("All",)
#: Queues in one answer.
_PAGE: Final = 1_000


class Receipt(NamedTuple):
    """The answer to a request for messages; when it was sent and when it came, monotonic seconds."""

    answer: Mapping[str, Any]
    before: float
    after: float

    @property
    def messages(self) -> Sequence[Mapping[str, Any]]:
        """The messages."""
        return self.answer.get("Messages") or ()


class Queue:
    """A queue, reached by the process's client for its place.

    `doing` completes the sentence "... queue 'orders'" in error texts. Every method raises BrokerError.

    Args:
        address: of the queue.
        settings: of the client.
        own: whether it is the queue of a URL; otherwise a row names it, and its errors concern this row alone.
    """

    def __init__(self, address: Address, settings: Settings, *, own: bool = True) -> None:
        self.address = address
        self.settings = settings
        self._own = own

    @property
    def client(self) -> Any:
        """The boto3 client."""
        return connections.boto_client(self.address, self.settings)

    @property
    def url(self) -> str:
        """SQS's own URL of the queue; may ask SQS for it."""
        return connections.queue_url(self.address, self.settings, own=self._own)

    @property
    def account(self) -> str:
        """The account of its owner, by SQS's own URL."""
        return self.url.rstrip("/").rpartition("/")[0].rpartition("/")[2]

    def doing(self, doing: str) -> str:
        """`doing` with the queue's name."""
        return f"{doing} queue {self.address.queue!r}"

    def request(self, operation: str, doing: str, **arguments: Any) -> Mapping[str, Any]:
        """Make one request about this queue."""
        return self.call(operation, doing, QueueUrl=self.url, **arguments)

    def call(self, operation: str, doing: str, **arguments: Any) -> Mapping[str, Any]:
        """Make one request that does not take the queue's URL."""
        action = "".join(word.capitalize() for word in operation.removesuffix("_batch").split("_"))
        with TABLE.while_doing(
            self.doing(doing),
            safe=operation.startswith(("get_", "list_")),
            rows=len(arguments["Entries"]) if operation == "send_message_batch" else 0,
            own_target=self._own,
            needs=f"sqs:{action}",
        ):
            answer: Mapping[str, Any] = getattr(self.client, operation)(**arguments)
        return answer

    def request_each(
        self, operation: str, doing: str, entries: Sequence[Mapping[str, Any]], **bounds: Any
    ) -> list[Answer]:
        """Make requests of ten entries; `bounds` as `request_each` of `batch_requests` takes them."""
        if not entries:
            return []
        _ = self.url  # here, so that an error of this lookup is raised, and not the answer to an entry
        return request_each(partial(self.request_entries, operation, doing), entries, self.doing(doing), **bounds)

    def request_entries(self, operation: str, doing: str, entries: Sequence[Mapping[str, Any]]) -> list[Answer]:
        """Make one request of up to ten entries. Raises BrokerError, and no other error: it failed as a whole."""
        with TABLE.while_doing(self.doing(doing), also=(Exception,)):
            named = [{**entry, "Id": str(at)} for at, entry in enumerate(entries)]
            answer = self.request(operation, doing, Entries=named)
            return answers_by_entry(answer, len(entries), self.doing(doing))

    def attributes(self, *names: str, doing: str = "looking at") -> Mapping[str, str]:
        """These attributes of the queue, all by default, as far as the server returns them."""
        found = self.request("get_queue_attributes", doing, AttributeNames=list(names or _ALL))
        attributes: Mapping[str, str] = found.get("Attributes") or {}
        return attributes

    def arn(self) -> str:
        """The queue's ARN."""
        return self.attributes("QueueArn").get("QueueArn", "")

    def sources(self, doing: str) -> list[str]:
        """The names of the queues whose redrive policy names this one as their dead letter queue."""
        names: list[str] = []
        page: dict[str, Any] = {"MaxResults": _PAGE}
        while True:
            found = self.request("list_dead_letter_source_queues", doing, **page)
            names += [str(each).rstrip("/").rpartition("/")[2] for each in found.get("queueUrls") or ()]
            if not found.get("NextToken"):
                return names
            page["NextToken"] = found["NextToken"]

    def receive(self, doing: str, count: int, *, wait: int, hidden: int) -> Mapping[str, Any]:
        """Receive up to `count` messages with all their attributes; `wait` and `hidden` are whole seconds."""
        return self.request(
            "receive_message",
            doing,
            MaxNumberOfMessages=count,
            WaitTimeSeconds=wait,
            VisibilityTimeout=hidden,
            MessageAttributeNames=["All"],
            MessageSystemAttributeNames=["All"],
        )

    def receive_each(
        self, doing: str, counts: Sequence[int], *, wait: int, hidden: int, concurrency: int
    ) -> tuple[list[Receipt], BrokerError | None]:
        """Make requests of these numbers of messages side by side, and no further one after one that came short.

        Returns:
            The answers, and the first error of those that failed: what the others have received is received.
        """
        _ = self.url
        waiting = deque(counts)
        receipts: list[Receipt] = []
        failed: list[BrokerError] = []
        short: list[int] = []

        def work() -> None:
            while waiting and not (failed or short):
                try:
                    count = waiting.popleft()
                except IndexError:
                    return
                before = time.monotonic()
                try:
                    with TABLE.while_doing(self.doing(doing), also=(Exception,)):
                        answer = self.receive(doing, count, wait=wait, hidden=hidden)
                except BrokerError as error:
                    failed.append(error)
                    return
                receipts.append(Receipt(answer, before, time.monotonic()))
                if len(answer.get("Messages") or ()) < count:
                    short.append(count)

        side_by_side(work, min(concurrency, len(counts)))
        return receipts, failed[0] if failed else None

    def delete(self, doing: str, handles: Iterable[str], **bounds: Any) -> list[Answer]:
        """Delete the messages of these receipt handles."""
        entries = [{"ReceiptHandle": handle} for handle in handles]
        return self.request_each("delete_message_batch", doing, entries, **bounds)

    def hide(self, doing: str, seconds: Iterable[tuple[str, int]], **bounds: Any) -> list[Answer]:
        """Hide messages for whole seconds from now, each given as receipt handle and seconds; 0 shows it."""
        entries = [{"ReceiptHandle": handle, "VisibilityTimeout": timeout} for handle, timeout in seconds]
        return self.request_each("change_message_visibility_batch", doing, entries, **bounds)
