"""The closed vocabulary of error codes, as plugins import it."""

from __future__ import annotations

from redelivery.codes import MEANINGS, Code

__all__ = ["MEANINGS", "Code"]
