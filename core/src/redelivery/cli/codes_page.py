"""`redelivery plugins --codes`: the vocabulary of error codes, as the page `docs/codes.md`."""

from __future__ import annotations

from redelivery.codes import MEANINGS

_HEAD = """\
# Error codes

Made by `redelivery plugins --codes`; a test compares it with the code.

Every error has a code. It means the same on every broker, and no other codes exist. Beside it stands `native_code`, the
client's or the broker's own word, where it has one: `TOO_LARGE` with `MSG_SIZE_TOO_LARGE`, `NOT_AUTHORIZED` with `403`.

| where | how |
| --- | --- |
| Spark | `_error.code` and `_error.native_code`: `letters.where("_error.code = 'TOO_LARGE'")` |
| command line | `redelivery dead-letters redrive URL --where code=TOO_LARGE`, `native_code=403`; `stats` counts both |
| accounts | `report.reasons`: `{"TOO_LARGE (MSG_SIZE_TOO_LARGE)": 3}` |
| Python | `error.code is Code.TOO_LARGE`, `letter.context.native_code` |

The code says why. What may be done about it is the `kind`: the same `CONNECTION_LOST` is `retriable` where nothing was
sent, and `ambiguous` where the message may have been stored. A letter of an earlier version has its word as
`native_code` and no code.

| code | meaning |
| --- | --- |
"""


def as_markdown() -> str:
    """Return the page."""
    return _HEAD + "\n".join(f"| `{code}` | {meaning} |" for code, meaning in MEANINGS.items())
