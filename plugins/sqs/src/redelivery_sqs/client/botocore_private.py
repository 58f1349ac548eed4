"""Every private name of botocore that this plugin uses, and the versions of botocore with which it was tried.

A test fails if the installed botocore is not one of them: try the functions below with it, then add its version.
"""

from __future__ import annotations

from typing import Any, Final

#: Minor releases of botocore with which `forget_credentials` was tried.
TRIED: Final = ("1.44",)


def forget_credentials(session: Any) -> None:
    """Make a botocore session look for its credentials again, by its component `credential_provider`.

    A session keeps the credentials that it has found, and botocore has no public way to drop them.
    """
    session._credentials = None  # noqa: SLF001 - the reason for this module
