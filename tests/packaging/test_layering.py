"""Imports point one way: app -> {models, engine}; llama_cpp is one file's, Textual one folder's; nothing goes around the import root."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LAYERS = {"app": {"app", "models", "engine"}, "models": {"models"}, "engine": {"engine"}}
NATIVE = "engine/native.py"
SCREEN = "app/tui/"


def imported_modules(tree: ast.AST) -> Iterator[str]:
    """Every module that a file names in an import, wherever the import stands, or hands to import_module."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (name.name for name in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                base = "." * level + (module or "")
                yield from (f"{base}.{name.name}" for name in names)
            case ast.Call(
                func=ast.Attribute(attr="import_module") | ast.Name(id="import_module" | "__import__"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield name


def fault(layer: str, file: str, module: str) -> str | None:
    parts = module.split(".")
    if parts[0] == "":
        return "a relative import"
    if parts[0] in LAYERS:
        return "an import past the import root pinyon"
    if parts[0] == "llama_cpp" and file != NATIVE:
        return f"llama_cpp outside {NATIVE}"
    if parts[0] == "textual" and not file.startswith(SCREEN):
        return f"textual outside {SCREEN}"
    if parts[0] == "diskcache":
        return "diskcache, which unpickles what it reads"
    if parts[0] == "pinyon" and (len(parts) < 2 or parts[1] not in LAYERS[layer]):
        return f"{layer} must not know it"
    return None


def layering_faults(root: Path) -> list[str]:
    return [
        f"{file} imports {module}: {reason}"
        for layer in LAYERS
        for path in sorted((root / layer).rglob("*.py"))
        for file in [path.relative_to(root).as_posix()]
        for module in imported_modules(ast.parse(path.read_text("utf-8")))
        if (reason := fault(layer, file, module)) is not None
    ]


def test_imports_point_one_way():
    assert layering_faults(ROOT) == []


def test_the_package_root_imports_only_the_command_line():
    modules = {
        module
        for path in (ROOT / "packaging" / "pinyon").glob("*.py")
        for module in imported_modules(ast.parse(path.read_text("utf-8")))
    }
    assert modules == {"pinyon.app.cli.main.main"}


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("models/store.py", "from pinyon.engine.client import EngineClient"),
        ("models/store.py", "import pinyon.app.settings"),
        ("engine/worker.py", "from pinyon.models import catalog"),
        ("engine/worker.py", "from pinyon.app import service"),
        ("engine/worker.py", "from pinyon import models"),
        ("engine/worker.py", "import pinyon"),
        ("app/service.py", "import llama_cpp"),
        ("engine/worker.py", "from llama_cpp import llama_cpp as lib"),
        ("engine/worker.py", "def late():\n    import llama_cpp.llama_cpp"),
        ("app/cli/run.py", "importlib.import_module('llama_cpp')"),
        ("app/cli/run.py", "__import__('llama_cpp')"),
        ("app/cli/chat.py", "def late():\n    from textual.app import App"),
        ("app/history.py", "from diskcache import Cache"),
        ("app/history.py", "from llama_cpp.llama_cache import LlamaDiskCache"),
        ("app/service.py", "from engine import client"),
        ("app/service.py", "import models.store"),
        ("models/store.py", "from . import catalog"),
        ("engine/worker.py", "from ..models import catalog"),
    ],
)
def test_a_planted_import_is_found(tmp_path, file, source):
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(f"{source}\n")
    assert len(layering_faults(tmp_path)) == 1


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("engine/native.py", "from llama_cpp import llama_cpp as lib"),
        ("app/service.py", "from pinyon.models.store import Store\nfrom pinyon.engine import client"),
        ("app/tui/app.py", "from textual.app import App"),
        ("models/store.py", "import hashlib\nfrom pinyon.models import catalog"),
    ],
)
def test_what_is_allowed_passes(tmp_path, file, source):
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(source)
    assert layering_faults(tmp_path) == []
