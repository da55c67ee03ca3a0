"""Templates: what is filled in where, and what is refused."""

from pathlib import Path

import pytest

from pinyon.app.errors import UsageError
from pinyon.app.templates import Template, read_template, template_names


@pytest.mark.parametrize(
    ("prompt", "given", "expected"),
    [
        ("", "text", "text"),
        ("Summarise:", "text", "text\n\nSummarise:"),
        ("Summarise:", "", "Summarise:"),
        ("Say <$input> once", "text", "Say <text> once"),
        ("${input}s", "cat", "cats"),
        ("It costs $$5", "", "It costs $5"),
        ("In $language: $input", "costs $language", "In French: costs $language"),
    ],
)
def test_the_input_goes_where_the_template_says_or_comes_before_it(prompt, given, expected):
    template = Template(prompt, defaults={"language": "French"} if "$language" in prompt else {})
    assert template.filled(given, {}) == (expected, None)


def test_variables_come_from_the_command_or_from_the_defaults():
    template = Template("$a $b", system="as $c", defaults={"a": "1", "c": "3"})
    assert template.filled("", {"b": "2", "a": "9"}) == ("9 2", "as 3")
    with pytest.raises(UsageError, match=r"variable b has no value.*-p b=VALUE"):
        template.filled("", {})
    with pytest.raises(UsageError, match="no variable x; it has a, b, c"):
        template.filled("", {"b": "2", "x": "2"})
    with pytest.raises(UsageError, match=r"\$input"):
        Template("$input").filled(" ", {})
    with pytest.raises(UsageError, match="no variable input; it has none"):
        Template("$input").filled("x", {"input": "y"})


def test_a_template_is_a_file_by_name_or_by_path(tmp_path):
    (tmp_path / "short.toml").write_text(
        'prompt = "$input!"\nsystem = "Be brief."\nmodel = "m"\nextract = true\n'
        '[options]\ntemperature = 0\n[defaults]\na = "b"\n'
    )
    expected = Template("$input!", "Be brief.", "m", extract=True, options={"temperature": 0}, defaults={"a": "b"})
    assert read_template("short", tmp_path) == expected
    assert read_template(str(tmp_path / "short.toml"), tmp_path / "elsewhere") == expected
    assert template_names(tmp_path) == ["short"]
    assert template_names(tmp_path / "none") == []


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"prompt = ", "is no template"),
        (b'promt = "x"', "promt"),
        (b"prompt = 1", "Expected `str`"),
        (b"\xff", "is no template"),
        (b'prompt = "costs $5"', r"\$\$"),
        (b'system = "$"', r"\$\$"),
        (b"a = " + b"[" * 10_000, "is no template"),
    ],
)
def test_what_is_no_template_is_refused(tmp_path, data, message):
    (tmp_path / "bad.toml").write_bytes(data)
    with pytest.raises(UsageError, match=message):
        read_template("bad", tmp_path)


def test_an_unknown_name_is_told_the_known_ones(tmp_path):
    with pytest.raises(UsageError, match="none yet"):
        read_template("x", tmp_path)
    (tmp_path / "a.toml").touch()
    (tmp_path / "b.toml").touch()
    with pytest.raises(UsageError, match="has a, b"):
        read_template("x", tmp_path)


def test_the_readme_s_template_is_one(tmp_path):
    readme = (Path(__file__).resolve().parents[2] / "README.md").read_text("utf-8")
    (tmp_path / "review.toml").write_text(readme.split("```toml\nprompt")[1].split("```")[0].join(["prompt", ""]))
    template = read_template("review", tmp_path)
    assert template.filled("x = 1", {}) == ("Review this Python code. x = 1", "You are a careful reviewer.")
    assert (template.schema, template.options) == ("line int, remark", {"temperature": 0.2})
