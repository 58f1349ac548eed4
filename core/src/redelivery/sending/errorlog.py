"""`ErrorLog`: failures as KIP-298 logs them, one JSON object each, where `errors.log.enable` asks for it.

If the option is unset, the first few failures are logged as lines for people, one line for rows that failed alike; the
report counts all.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from typing import Final

from redelivery.base.secrets import Redacted, redact
from redelivery.contract.spec import DeliverySpec
from redelivery.formats import dialects
from redelivery.sending.group import Group, Origin
from redelivery.sending.letters import Reporter

log = logging.getLogger("redelivery.delivery")

#: Lines of failures that are logged where `errors.log.enable` is not set.
_MOST_WARNINGS: Final = 5


class ErrorLog:
    """Logs permanent failures.

    Args:
        spec: sets what is logged.
        origin: its options are written where the spec includes them.
    """

    def __init__(self, spec: DeliverySpec, origin: Origin) -> None:
        self._spec = spec
        self._origin = origin
        self._warnings = 0

    @property
    def is_due(self) -> bool:
        """Whether the next failure is logged at all."""
        return bool(self._spec.log_enable) or (self._spec.log_enable is None and self._warnings < _MOST_WARNINGS)

    def write(
        self, group: Group, rows: Sequence[int], reporter: Reporter, fate: str, story: Callable[[int], str]
    ) -> int:
        """Log rows that failed permanently; return how many the log now has.

        Args:
            group: what failed.
            rows: of the group, at least one.
            reporter: says why.
            fate: what happens to them next.
            story: the same of a row for people, redacted. One line stands for all rows.
        """
        spec = self._spec
        if not self.is_due:
            return 0
        if spec.log_enable:
            contexts = reporter.contexts(group)
            for row in rows:
                form = dialects.document(
                    dialects.strip(group.messages.row(row)),
                    contexts.row(row),
                    include_message=bool(spec.log_include_messages),
                    configs=self._origin.configs if spec.log_include_configs else None,
                )
                whole = {"fate": redact(fate), "duration_ms": round(group.seconds * 1000), **form}
                log.error(Redacted(json.dumps(whole)))
            return len(rows)
        self._warnings += 1
        others = f"; and {len(rows) - 1} more with it" if len(rows) > 1 else ""
        log.warning("%s", f"{redact(fate)}: {story(rows[0])}{others}")
        if self._warnings == _MOST_WARNINGS:
            log.warning("further failures are counted, not logged, unless errors.log.enable is set")
        return len(rows)
