"""The client options."""

from __future__ import annotations

from dataclasses import dataclass

from redelivery.kit.options import Options, integer, seconds


@dataclass(frozen=True, slots=True)
class Settings(Options, broker="beanstalk"):
    """The values of the client options."""

    connect_timeout: float = seconds(5, "time to wait for a connection", least=0.1, most=20)
    ttr: int = integer(60, "how long a receiver leases what is sent, in seconds (time to run)", least=2, most=1 << 31)
    max_job_size: int = integer(65535, "the largest message in bytes, as the server's -z", least=1, most=1 << 30)
