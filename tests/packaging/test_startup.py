"""What a command imports before it has done anything: start-up time is part of the answer's."""

import json
import os
import subprocess
import sys
from importlib.metadata import version

import pytest

from pinyon.app.cli.main import COMMANDS

MAIN = "pinyon.app.cli.main"
HEAVY = (
    "fastapi",
    "httpx",
    "httpx2",
    "huggingface_hub",
    "jinja2",
    "llama_cpp",
    "numpy",
    "pydantic",
    "rich",
    "starlette",
    "textual",
    "uvicorn",
)
"""Each takes 30 to 300 ms."""


def modules_after(*modules: str, path: str = "") -> set[str]:
    """Top-level modules that a fresh interpreter has loaded after these imports."""
    code = f"import sys, json, {', '.join(modules)}; print(json.dumps(sorted(sys.modules)))"
    environment = {**os.environ, "PYTHONPATH": path}
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, env=environment).stdout
    return {name.partition(".")[0] for name in json.loads(loaded)}


@pytest.mark.parametrize("module", [MAIN, *COMMANDS.values()])
def test_starting_a_command_imports_nothing_heavy(module):
    assert modules_after(MAIN, module) & set(HEAVY) == set()


@pytest.mark.parametrize("module", [COMMANDS["run"], COMMANDS["batch"]])
def test_what_answers_starts_without_the_history(module):
    assert "sqlite3" not in modules_after(MAIN, module)


def test_help_needs_no_command_that_is_not_shown():
    assert "asyncio" not in modules_after(MAIN)


def test_a_planted_import_is_found(tmp_path):
    (tmp_path / "planted.py").write_text("import rich.console\n")
    assert "rich" in modules_after("planted", path=str(tmp_path))


def test_python_m_pinyon():
    asked = subprocess.run([sys.executable, "-m", "pinyon", "--version"], capture_output=True, text=True, check=True)
    assert asked.stdout.endswith(f"pinyon, version {version('pinyon')}\n")
    assert asked.stderr == ""
