"""The plugin's use of private names of botocore."""

import botocore
import botocore.session

from redelivery_sqs.client import botocore_private


def test_the_installed_botocore_was_tried() -> None:
    """A new release may rename what is private. Try it, then add it to `TRIED`."""
    assert ".".join(botocore.__version__.split(".")[:2]) in botocore_private.TRIED


def test_a_session_looks_for_its_credentials_again() -> None:
    session = botocore.session.Session()
    session.set_credentials("AKIAEXAMPLE", "one")
    assert session.get_credentials().access_key == "AKIAEXAMPLE"
    botocore_private.forget_credentials(session)

    class Resolver:
        def load_credentials(self) -> str:
            return "found again"

    session.register_component("credential_provider", Resolver())
    assert session.get_credentials() == "found again"
