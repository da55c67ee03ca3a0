"""The README's help texts are the commands' own."""

import subprocess

import help_texts
import pytest

README = help_texts.README.read_text("utf-8")


def test_the_readme_has_the_help_texts_of_now():
    assert help_texts.with_help(README) == README, "run `python tests/support/help_texts.py`"


@pytest.mark.parametrize("name", ["run", "batch"])
def test_commands_with_many_options_are_in_the_readme(name):
    assert f"<!-- help: {name} -->\n" in README


def test_a_text_that_is_not_the_command_s_is_found():
    changed = README.replace("  -s, --system TEXT", "  -s, --sistem TEXT")
    assert changed != README
    assert help_texts.with_help(changed) == README


def test_a_place_for_no_command_is_found():
    with pytest.raises(subprocess.CalledProcessError):
        help_texts.with_help("<!-- help: nope -->\n<!-- end -->\n")
