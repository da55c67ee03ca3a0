"""The repository as a whole: what its files may name, and whether its documents tell what is there."""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT_SUFFIXES = {".cfg", ".css", ".ini", ".md", ".py", ".sh", ".tcss", ".toml", ".txt", ".typed", ".yaml", ".yml"}
SKIPPED_FOLDERS = {".git", ".hypothesis", ".venv", "__pycache__", "build", "dist", "shared"}

# Brackets keep the patterns from matching themselves.
REGISTRIES = re.compile(
    r"pyp[i][.]org|pythonhoste[d][.]org|anacond[a][.]org|conda-forg[e][.]|[a]betlen[.]github[.]io", re.IGNORECASE
)
MACHINE_PATHS = re.compile(r"/roo[t]/|/hom[e]/\w|/User[s]/\w|/opt/pyp[i]|/opt/wheel[s]|/wor[k]/|[/]tmp/\w+[.]")


def source_files(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        folders[:] = [
            name for name in folders if name not in SKIPPED_FOLDERS and not name.endswith(("_cache", ".egg-info"))
        ]
        for path in (Path(folder, name) for name in names):
            if path.suffix in TEXT_SUFFIXES or path.parent.name == ".ci":
                yield path


def lines_that_match(root: Path, pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{path.relative_to(root)}:{number}: {line.strip()}"
        for path in source_files(root)
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if pattern.search(line)
    ]


def test_no_package_registry_is_named():
    assert lines_that_match(ROOT, REGISTRIES) == []


def test_no_path_of_one_machine_is_named():
    assert lines_that_match(ROOT, MACHINE_PATHS) == []


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        (REGISTRIES, "--index-url https://PyPI" + ".org/simple"),
        (REGISTRIES, "files.pythonhosted" + ".org"),
        (MACHINE_PATHS, "MODELS = '/home" + "/me/models'"),
        (MACHINE_PATHS, "see /root" + "/notes.md"),
    ],
)
def test_a_planted_name_is_found(tmp_path, pattern, line):
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "planted.py").write_text(f"# fine\n# {line}\n")
    assert lines_that_match(tmp_path, pattern) == [f"app/planted.py:2: # {line}"]


def commands_of(readme: str) -> list[str]:
    """The scripts that the first block of commands starts."""
    first_block = readme.split("```")[1]
    return re.findall(r"^sh (\S+)", first_block, re.MULTILINE)


def test_the_two_commands_of_the_readme_are_there():
    assert commands_of((ROOT / "README.md").read_text("utf-8")) == ["packaging/try.sh", "packaging/test.sh"]


@pytest.mark.parametrize("script", ["packaging/common.sh", "packaging/try.sh", "packaging/test.sh"])
def test_scripts_are_posix_shell(script):
    checked = subprocess.run(["sh", "-n", ROOT / script], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")


def test_the_checks_are_bash():
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    assert subprocess.run(["bash", "-n", ROOT / ".ci" / "run"], check=False).returncode == 0


def test_a_planted_syntax_error_is_found(tmp_path):
    (tmp_path / "bad.sh").write_text("if true; then\n")
    assert subprocess.run(["sh", "-n", tmp_path / "bad.sh"], capture_output=True, check=False).returncode != 0


def undescribed(root: Path, architecture: str) -> list[str]:
    """Modules without a table row or list item that begins with their path."""
    described = set(re.findall(r"^[|*-] *`([^`]+)`", architecture, re.MULTILINE))
    return [
        file
        for folder in ("app", "engine", "models")
        for path in sorted((root / folder).rglob("*.py"))
        if (file := path.relative_to(root).as_posix()) not in described and path.name != "__init__.py"
    ]


def described_but_gone(root: Path, architecture: str) -> list[str]:
    described = re.findall(r"^[|*-] *`((?:app|engine|models)/[^`]+)`", architecture, re.MULTILINE)
    return [file for file in described if not (root / file).exists()]


def test_each_file_has_its_line_in_the_architecture():
    architecture = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    assert undescribed(ROOT, architecture) == []
    assert described_but_gone(ROOT, architecture) == []


def test_a_file_without_a_line_is_found(tmp_path):
    for name in ("app/cli/run.py", "engine/engine.py", "engine/__init__.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    text = "Mentions engine/engine.py.\n| `app/cli/run.py` | one prompt |\n| `models/store.py` | gone |\n"
    assert undescribed(tmp_path, text) == ["engine/engine.py"]
    assert described_but_gone(tmp_path, text) == ["models/store.py"]
