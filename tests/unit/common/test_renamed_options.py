"""Options under their old names: the same meaning, a warning, and an error where both are given."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from popwheel_cli.options import ClusterOptions
from popwheel_common.errors import ConfigurationError
from popwheel_common.settings.advertised_address import AdvertisedAddress
from popwheel_common.settings.config import load
from popwheel_common.settings.option_fields import find_field
from popwheel_common.settings.renamed_options import RENAMED_OPTIONS


def test_the_new_names_exist_and_the_old_ones_are_gone() -> None:
    for old, renamed in RENAMED_OPTIONS.items():
        assert find_field(ClusterOptions, renamed.name.split(".")) is not None
        assert find_field(ClusterOptions, old.split(".")) is None


def test_an_old_name_has_the_meaning_of_the_new_one_in_each_place(tmp_path: Path) -> None:
    file = tmp_path / "popwheel.yaml"
    file.write_text("proxy: {advertised_host: mq.example.org, advertised_port: 0, name: p}\n")
    old_names: dict[str, str] = {}
    sources: dict[str, str] = {}
    options = load(
        ClusterOptions,
        file=file,
        environment={"POPWHEEL_BROKER__CONTROLLER_ADDRESS": "c:1"},
        assignments=["proxy.advertised_port=80"],
        sources=sources,
        old_names=old_names,
    )
    assert options.proxy.advertised_address == "mq.example.org:80"
    assert (options.proxy.name, options.broker.controller) == ("p", "c:1")
    assert sources["proxy.advertised_address"] == "command line"
    assert sources["broker.controller"] == "environment"
    assert old_names == {
        "broker.controller_address": "broker.controller",
        "proxy.advertised_host": "proxy.advertised_address",
        "proxy.advertised_port": "proxy.advertised_address",
    }


def test_a_later_place_wins_whatever_the_name() -> None:
    old_names: dict[str, str] = {}
    options = load(
        ClusterOptions,
        environment={"POPWHEEL_BROKER__CONTROLLER_ADDRESS": "c:1", "POPWHEEL_PROXY__ADVERTISED_ADDRESS": "mq:80"},
        assignments=["broker.controller=d:2", "proxy.advertised_host=fd00::1"],
        old_names=old_names,
    )
    assert options.broker.controller == "d:2"
    assert options.proxy.advertised == AdvertisedAddress("fd00::1", 80)


@pytest.mark.parametrize("names", [("controller_address", "controller"), ("controller", "controller_address")])
def test_both_names_in_one_place_are_an_error(names: tuple[str, str]) -> None:
    sentence = (
        r"^broker\.controller_address: is the old name of broker\.controller, which is given as well \(command line\): "
        r"remove broker\.controller_address$"
    )
    with pytest.raises(ConfigurationError, match=sentence):
        load(ClusterOptions, assignments=[f"broker.{name}=c:1" for name in names])


@pytest.mark.parametrize(
    ("assignment", "sentence"),
    [
        ("proxy.advertised_port=80000", "must be a whole number from 0 to 65535 .*proxy.advertised_address now"),
        ("proxy.advertised_port=true", "must be a whole number"),
        ("proxy.advertised_host=7", "must be text"),
        ("proxy.advertised_host=http://mq", "must be host, host:port or :port"),
    ],
)
def test_an_impossible_value_is_refused_under_the_name_that_was_given(assignment: str, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"^{assignment.partition('=')[0]}: {sentence}"):
        load(ClusterOptions, assignments=[assignment])


@pytest.mark.parametrize("text", ["mq:0", "mq:65536", "mq:", "mq:a", "http://mq:80", "a b", "[mq]:80", ":", "mq:a:1"])
def test_a_text_that_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^proxy\.advertised_address: must be host, host:port or :port"):
        load(ClusterOptions, flags={"proxy.advertised_address": text})


@given(st.sampled_from(["", "mq", "10.0.0.1", "::1", "fd00::1"]), st.sampled_from([0, 1, 65_535]))
def test_an_address_is_read_back(host: str, port: int) -> None:
    assert AdvertisedAddress.parse(str(AdvertisedAddress(host, port))) == AdvertisedAddress(host, port)
    assert AdvertisedAddress.parse(host) == AdvertisedAddress(host)
