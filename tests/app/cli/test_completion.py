"""Completion as a shell asks for it: through the environment, of the program itself."""

import subprocess

import pytest
from command_line import PINYON, environment, pinyon

from pinyon.models import catalog


def completed(home, *words):
    """What follows the last of these words, as bash is told."""
    variables = {"_PINYON_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
    # The variable's name follows the program's: `pinyon` as a console script has it.
    code = "import sys; sys.argv[0] = 'pinyon'; from pinyon.app.cli.main import main; main()"
    done = subprocess.run(
        [PINYON[0], "-c", code], env=environment(home, **variables), capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    return [line.split(",", 1)[1] for line in done.stdout.split()]


@pytest.fixture(scope="module")
def home(tmp_path_factory, tiny):
    folder = tmp_path_factory.mktemp("home")
    pinyon(folder, "add", tiny, "--name", "tiny", check=True)
    (folder / "config" / "templates").mkdir(parents=True)
    (folder / "config" / "templates" / "short.toml").touch()
    return folder


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["pinyon", "ba"], ["batch"]),
        (["pinyon", "run", "--ext"], ["--extract"]),
        (["pinyon", "run", "-t", "s"], ["short"]),
        (["pinyon", "run", "-m", "t"], ["tiny"]),
        (["pinyon", "run", "-m", "smo"], ["smollm2"]),
        (["pinyon", "run", "--format", "json"], ["json", "jsonl"]),
        (["pinyon", "completion", "z"], ["zsh"]),
    ],
)
def test_commands_options_models_and_templates_are_completed(home, words, expected):
    assert completed(home, *words) == expected


def test_models_that_are_here_come_first(home):
    assert completed(home, "pinyon", "run", "-m", "") == ["tiny", *(entry.name for entry in catalog.CATALOG)]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell(home, shell):
    done = pinyon(home, "completion", shell)
    assert done.returncode == 0
    assert f"_PINYON_COMPLETE={shell}_complete" in done.stdout.decode()


def test_a_damaged_home_completes_nothing_and_says_nothing(tmp_path):
    (tmp_path / "data").write_text("a file where a folder should be")
    assert completed(tmp_path, "pinyon", "run", "-m", "tin") == []
