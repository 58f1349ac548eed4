"""What is common to the URLs of all plugins."""

import pytest

from redelivery.errors import InvalidURL, UnknownOption
from redelivery.kit.address import local_path, split_url, url_parameters

WHERE = "carrier: 'carrier:x'"


def test_parameters_are_read_as_they_were_quoted() -> None:
    assert url_parameters("queue=a%26b&mode=x+y", ["queue", "mode"], WHERE) == {"queue": "a&b", "mode": "x y"}
    assert url_parameters("", ["queue"], WHERE) == {}


@pytest.mark.parametrize(
    ("query", "kind", "told"),
    [
        ("quue=a", UnknownOption, "did you mean 'queue'"),
        ("queue=a&queue=b", InvalidURL, f"{WHERE}: 'queue' is given twice"),
        ("queue=", InvalidURL, f"{WHERE}: 'queue' is empty"),
    ],
)
def test_a_wrong_parameter_is_named(query: str, kind: type[Exception], told: str) -> None:
    with pytest.raises(kind, match=told):
        url_parameters(query, ["queue"], WHERE)


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("carrier:a/b", "a/b"),
        ("carrier:///a%23/b", "/a#/b"),
        ("carrier://localhost/a", "/a"),
        ("carrier:////a//b", "/a//b"),
    ],
)
def test_a_path_is_read_as_it_was_quoted(url: str, path: str) -> None:
    assert local_path(split_url(url), WHERE, "as in carrier:x") == path


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("carrier://host/a", "names the host 'host'"),
        ("carrier:a#b", "write a '#' in a path as %23"),
        ("carrier:?queue=a", "has no path"),
        ("carrier:a%00b", "has no path"),
        (r"carrier:C:\data\a", "in WSL, drive C: is /mnt/c"),
        ("carrier:///d:/data/a", "in WSL, drive d: is /mnt/d"),
    ],
)
def test_a_url_without_a_plain_path_is_told_with_an_example(url: str, told: str) -> None:
    with pytest.raises(InvalidURL, match=told) as raised:
        local_path(split_url(url), WHERE, "as in carrier:x")
    assert str(raised.value).endswith("as in carrier:x")
