"""The page of all options is up to date, and every option says what it is for."""

import pytest

from popwheel_cli.options import ClusterOptions
from popwheel_common.settings.option_fields import option_fields
from tools.generate_options_doc import PAGE, SECTIONS, options_page


def test_the_committed_page_is_what_the_models_say() -> None:
    committed = PAGE.read_text(encoding="utf-8")
    assert committed == options_page(), "run `make docs`"


def test_a_section_that_has_no_words_is_not_left_out_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(SECTIONS, "tls")
    with pytest.raises(ValueError, match="would leave out tls: say in SECTIONS of tools"):
        options_page()


def test_a_section_that_is_gone_leaves_no_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SECTIONS, "gone", "Has no options.")
    with pytest.raises(ValueError, match="has gone, of which there are no options any more"):
        options_page()


def test_every_option_says_what_it_is_for() -> None:
    assert [field.key for field in option_fields(ClusterOptions) if not field.description] == []


def test_no_part_has_more_options_than_one_can_survey() -> None:
    """A service with more settings than that is hard to run."""
    counts: dict[str, int] = {}
    for field in option_fields(ClusterOptions):
        part = field.key.partition(".")[0]
        counts[part] = counts.get(part, 0) + 1
    assert max(counts.values()) <= 60, counts
