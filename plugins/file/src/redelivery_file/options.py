"""The client options."""

from __future__ import annotations

from dataclasses import dataclass

from redelivery.kit.options import Options, integer, seconds


@dataclass(frozen=True, slots=True)
class Settings(Options, broker="file"):
    """The parsed client options: when `format=jsonl` begins another file."""

    rotate_bytes: int = integer(
        64 << 20, "with format=jsonl: bytes after which another file begins", least=1, most=1 << 31
    )
    rotate_letters: int = integer(
        100_000, "with format=jsonl: letters after which another file begins", least=1, most=10_000_000
    )
    rotate_seconds: float = seconds(3600, "with format=jsonl: seconds after which another file begins", least=1)
