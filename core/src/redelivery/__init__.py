"""redelivery: write from PySpark to any message broker, and account for every row."""

from __future__ import annotations
