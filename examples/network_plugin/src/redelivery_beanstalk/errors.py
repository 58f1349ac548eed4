"""The server's answers and the network's errors, as redelivery's."""

from __future__ import annotations

from typing import Any

from redelivery.errors import Ambiguous, Fatal, Permanent, Retriable
from redelivery.kit.errors import BUG, ClientError, Code, ErrorTable, Rule


class Refused(Exception):
    """The server answered with a word that is not the one that was asked for."""

    def __init__(self, word: str) -> None:
        super().__init__(word)
        self.word = word


#: By rule: the words of the server that it covers.
RULES: dict[Rule, tuple[str, ...]] = {
    Rule(Permanent, Code.TOO_LARGE, "send less, or start the server with a larger -z"): ("JOB_TOO_BIG",),
    Rule(Retriable, Code.UNAVAILABLE, "the server takes no more messages before it stops"): ("DRAINING",),
    Rule(Retriable, Code.FULL, "nothing was stored; receive messages, or give the server more memory"): (
        "OUT_OF_MEMORY",
    ),
    # It was stored and then set aside, so a second try may double it.
    Rule(Ambiguous, Code.FULL, "the server kept it aside for want of memory; kick the tube"): ("BURIED",),
    Rule(Ambiguous, Code.UNAVAILABLE, "the server has a fault; it may have been stored or not"): ("INTERNAL_ERROR",),
    Rule(Fatal, Code.UNSUPPORTED, "this plugin needs a beanstalkd of version 1.10 or newer"): ("UNKNOWN_COMMAND",),
    BUG: ("BAD_FORMAT", "EXPECTED_CRLF", "NOT_FOUND", "NOT_IGNORED"),
}
#: What is none of these words.
STRANGE = Rule(Fatal, Code.MISCONFIGURED, "beanstalkd does not answer so; correct the URL")
LOST = Rule(Ambiguous, Code.CONNECTION_LOST, "it may have been stored or not")
LATE = Rule(Ambiguous, Code.DEADLINE_EXCEEDED, "the server did not answer in time; it may have been stored or not")


def _describe(error: Any) -> ClientError:
    return ClientError(str(error), codes=(error.word,) if isinstance(error, Refused) else ())


TABLE = ErrorTable(
    "beanstalk",
    by_class={OSError: LOST, TimeoutError: LATE, Refused: STRANGE},
    by_code={word: rule for rule, words in RULES.items() for word in words},
    describe=_describe,
)
