"""`ErrorLog`: failures as KIP-298 logs them, one JSON object each, where `errors.log.enable` asks for it.

If the option is unset, the first few failures are logged as lines for people; the report counts all.
"""

from __future__ import annotations

import json
import logging
from typing import Final

from redelivery.base.secrets import Redacted, redact
from redelivery.contract.context import ErrorContext
from redelivery.contract.spec import DeliverySpec
from redelivery.formats import dialects
from redelivery.sending.record import Origin, Record

log = logging.getLogger("redelivery.delivery")

#: Failures that are logged one by one where `errors.log.enable` is not set.
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

    def write(self, record: Record, context: ErrorContext, fate: str, story: str) -> bool:
        """Log one failure; return False where the spec excludes it from the log.

        Args:
            record: what failed.
            context: why.
            fate: what happens to it next.
            story: the same for people, redacted.
        """
        spec = self._spec
        if spec.log_enable:
            form = dialects.document(
                dialects.strip(record.message),
                context,
                include_message=bool(spec.log_include_messages),
                configs=self._origin.configs if spec.log_include_configs else None,
            )
            whole = {"fate": redact(fate), "duration_ms": round(record.seconds * 1000), **form}
            log.error(Redacted(json.dumps(whole)))
            return True
        if spec.log_enable is False or self._warnings >= _MOST_WARNINGS:
            return False
        self._warnings += 1
        log.warning("%s", f"{redact(fate)}: {story}")
        if self._warnings == _MOST_WARNINGS:
            log.warning("further failures are counted, not logged, unless errors.log.enable is set")
        return True
