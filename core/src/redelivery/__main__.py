"""`python -m redelivery`: the command `redelivery`."""

from __future__ import annotations

from redelivery.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
