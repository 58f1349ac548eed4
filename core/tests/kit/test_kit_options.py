"""One declaration of an option gives its parsing, its help and its error text."""

from dataclasses import dataclass

import pytest

from redelivery.errors import ConfigurationError, UnknownOption
from redelivery.kit.options import Options, choice, flag, integer, number, option, seconds, secret, text


@dataclass(frozen=True, slots=True)
class Settings(Options, broker="carrier"):
    region: str | None = text("the region")
    where: str = text("the place", "north")
    ratio: float = number(0.5, "a share", least=0, most=1)
    size: int = integer(16, "requests in flight", least=1, most=1 << 31)
    pool: int | None = integer(None, "connections", least=1, most=9, shown="as many as size")
    wait: float = seconds(5, "time to wait", least=0.1, most=60)
    alive: bool = flag("keep connections", default=True)
    kind: str = choice("quorum", "type of queues", ("quorum", "classic"))
    ssl_ca: str | None = text("file of certificates", name="ssl.ca")
    password: str | None = secret("the password")
    pair: tuple[str, ...] = option((), "two names", lambda value: tuple(value.split(":")), "two names, as in a:b")


def test_nothing_given_gives_the_defaults() -> None:
    assert Settings.parse({}) == Settings()
    assert (Settings().where, Settings().wait, Settings().alive, Settings().pool) == ("north", 5, True, None)


def test_each_kind_is_read() -> None:
    given = {
        "region": "south", "ratio": "0.25", "size": "1e3", "pool": "3", "wait": "2.5", "alive": "FALSE",
        "kind": "classic", "ssl.ca": "ca.pem", "password": "hunter2", "pair": "a:b",
    }  # fmt: skip
    found = Settings.parse(given)
    assert found == Settings(
        region="south", ratio=0.25, size=1000, pool=3, wait=2.5, alive=False,
        kind="classic", ssl_ca="ca.pem", password=given["password"], pair=("a", "b"),
    )  # fmt: skip
    assert isinstance(found.size, int)
    assert "hunter2" not in repr(found)


def test_a_time_may_be_a_duration() -> None:
    assert Settings.parse({"wait": "PT1M"}).wait == 60
    assert Settings.parse({"wait": "pt0.5s"}).wait == 0.5


def test_a_choice_is_read_without_regard_to_case() -> None:
    assert Settings.parse({"kind": "Classic"}).kind == "classic"


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("ratio", "1.5", "carrier.ratio must be a number from 0 to 1, not '1.5'"),
        ("ratio", "nan", "carrier.ratio must be a number from 0 to 1, not 'nan'"),
        ("ratio", "", "carrier.ratio is empty; leave it out, or give it a value"),
        ("size", "2.5", "carrier.size must be a whole number from 1 to 2147483648, not '2.5'"),
        ("size", "inf", "carrier.size must be a whole number from 1 to 2147483648, not 'inf'"),
        ("size", "many", "carrier.size must be a whole number from 1 to 2147483648, not 'many'"),
        ("wait", "PT2M", "carrier.wait must be from 0.1 to 60 seconds, as a number or as a duration such as PT5S,"),
        ("wait", "P1Y", "carrier.wait must be from 0.1 to 60 seconds"),
        ("alive", "yes", "carrier.alive must be true or false, not 'yes'"),
        ("kind", "stream", "carrier.kind must be quorum or classic, not 'stream'"),
        ("region", "", "carrier.region is empty; leave it out, or give it a value"),
        ("ssl.ca", "", "carrier.ssl.ca is empty"),
        ("password", "", "carrier.password is empty"),
    ],
)
def test_a_wrong_value_is_named_with_what_it_must_be(name: str, value: str, told: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        Settings.parse({name: value})
    assert str(raised.value).startswith(told)


def test_the_value_of_a_secret_is_in_no_error() -> None:
    def refuse(value: str) -> str:
        raise ValueError(value)

    @dataclass(frozen=True, slots=True)
    class Secrets(Options, broker="carrier"):
        token: str | None = option(None, "a token", refuse, "a token", secret=True)

    with pytest.raises(ConfigurationError) as raised:
        Secrets.parse({"token": "hunter2hunter2"})
    assert str(raised.value) == "carrier.token must be a token"


def test_a_reader_may_say_by_itself_what_is_wrong() -> None:
    def read(_: str) -> str:
        raise ConfigurationError("carrier.login has no Endpoint")

    @dataclass(frozen=True, slots=True)
    class Login(Options, broker="carrier"):
        login: str | None = option(None, "who connects", read, "a login", secret=True)

    with pytest.raises(ConfigurationError, match=r"^carrier\.login has no Endpoint$"):
        Login.parse({"login": "x"})


def test_an_unknown_option_is_told_with_the_nearest_known_one() -> None:
    with pytest.raises(UnknownOption, match=r"carrier\.sise.*did you mean 'carrier\.size'"):
        Settings.parse({"sise": "3"})
    with pytest.raises(UnknownOption, match=r"carrier\.ssl_ca"):
        Settings.parse({"ssl_ca": "ca.pem"})


def test_the_help_names_each_option_as_users_write_it_with_its_default() -> None:
    assert Settings.help() == {
        "region": "the region",
        "where": "the place (north)",
        "ratio": "a share (0.5)",
        "size": "requests in flight (16)",
        "pool": "connections (as many as size)",
        "wait": "time to wait (5)",
        "alive": "keep connections: true or false (true)",
        "kind": "type of queues: quorum or classic (quorum)",
        "ssl.ca": "file of certificates",
        "password": "the password, as a reference",
        "pair": "two names",
    }
