"""`Memory`: a small file of JSON for each place, so that a restart goes on where the watch left off.

It lies beside the journals of redrives. A missing or damaged file is as if the place were seen for the first time.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from redelivery.base.files import make_private_folder, open_private, refuse_link
from redelivery.deadletters.journal import default_path

log = logging.getLogger(__name__)

_VERSION: Final = 1
#: Bytes of a file that are read at most; 10,000 groups take half a megabyte.
_LARGEST: Final = 16 * 1024 * 1024


class Memory:
    """The memory of one place.

    Args:
        identity: what tells the place from others, without secrets.
        folder: where the file is; None: where journals are. Raises ConfigurationError where the user has no folder.
    """

    def __init__(self, identity: str, folder: Path | None = None) -> None:
        name = f"watch-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.json"
        self.path = (folder or default_path(identity).parent) / name
        self._identity = identity
        self._warned = False

    def read(self) -> Mapping[str, Any] | None:
        """Return what was written last; None where nothing is remembered."""
        try:
            refuse_link(self.path)
            with self.path.open("rb") as file:
                found = json.loads(file.read(_LARGEST))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            self.forget(error)
            return None
        if isinstance(found, dict) and (found.get("version"), found.get("place")) == (_VERSION, self._identity):
            return found
        self.forget("it is of another place or version")
        return None

    def forget(self, why: object) -> None:
        """Say that what was remembered cannot be used."""
        log.warning("watch: %s is not used, so no group is known: %s", self.path, why)

    def write(self, said: Mapping[str, Any]) -> None:
        """Remember this, whole or not at all. A file that cannot be written is logged once, and the watch goes on."""
        document = json.dumps({"version": _VERSION, "place": self._identity, **said})
        beside = self.path.with_name(f".{self.path.name}.{secrets.token_hex(8)}")
        try:
            make_private_folder(self.path.parent)
            refuse_link(self.path)
            try:
                with os.fdopen(open_private(beside), "w", encoding="utf-8") as file:
                    file.write(document)
                beside.replace(self.path)
            finally:
                beside.unlink(missing_ok=True)
        except OSError as error:
            if not self._warned:
                text = "watch: %s cannot be written: %s; after a restart, known alerts are raised again"
                log.warning(text, self.path, error.strerror)
            self._warned = True
