"""Seeds that failed in earlier code, and what they found. A change of a world gives its seeds other histories: each
defect also has its own test, which is named beside it. A seed without a test has found a wrong check.
"""

from __future__ import annotations

from typing import Final

#: World, seed, what it found.
FOUND: Final = (
    (  # test_redriving.py::test_letters_behind_those_that_an_earlier_run_has_sent_come_too
        "redrive",
        241,
        "letters that appeared behind those of an earlier run were left in their place",
    ),
    *(  # test_subscription.py::test_a_letter_that_waits_for_its_sink_is_dropped_with_its_lease
        ("subscription", seed, "a letter that waited for its sink was stored after its message was delivered again")
        for seed in (104335, 106066, 106271, 107469)
    ),
    ("subscription", 3061990, "a letter whose lease was lost was held against the delivery after the next"),
    ("engine", 1000040, "the letters at one sink were held against what another sink recognises"),
)
