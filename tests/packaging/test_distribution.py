"""What a wheel and an sdist hold: the package's files and nothing else."""

import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from pinyon.engine.native import PINNED_VERSION

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
SETUPTOOLS = PROJECT["tool"]["setuptools"]
FOLDERS = {"pinyon": "packaging/pinyon", "pinyon.app": "app", "pinyon.engine": "engine", "pinyon.models": "models"}
NOT_SOURCE = {"__pycache__", ".mypy_cache", ".ruff_cache", ".DS_Store"}


def packages_in(root: Path) -> set[str]:
    """The packages that the folders hold, as import names."""
    return {
        ".".join([package, *path.parent.relative_to(root / folder).parts])
        for package, folder in FOLDERS.items()
        for path in (root / folder).rglob("__init__.py")
    }


def folders_without_init(root: Path) -> set[str]:
    folders = {path.parent for folder in FOLDERS.values() for path in (root / folder).rglob("*.py")}
    return {folder.relative_to(root).as_posix() for folder in folders if not (folder / "__init__.py").exists()}


def package_files(root: Path) -> set[str]:
    """Every file of the packages, by its place under the import root."""
    return {
        "/".join([*package.split("."), *path.relative_to(root / folder).parts])
        for package, folder in FOLDERS.items()
        for path in (root / folder).rglob("*")
        if path.is_file() and not NOT_SOURCE & set(path.parts)
    }


def test_the_list_of_packages_is_what_the_folders_hold():
    assert set(SETUPTOOLS["packages"]) == packages_in(ROOT)
    assert folders_without_init(ROOT) == set()
    assert SETUPTOOLS["package-dir"] == FOLDERS


def test_a_forgotten_package_is_found(tmp_path):
    for name in ("app/__init__.py", "app/tui/__init__.py", "engine/kv/tree.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert packages_in(tmp_path) == {"pinyon.app", "pinyon.app.tui"}
    assert folders_without_init(tmp_path) == {"engine/kv"}


def test_the_packaging_folder_is_no_package():
    assert not (ROOT / "packaging" / "__init__.py").exists(), "it would hide the library `packaging`"


def test_llama_cpp_python_is_pinned_to_the_version_that_native_is_written_for():
    assert f"llama-cpp-python=={PINNED_VERSION}" in PROJECT["project"]["dependencies"]


@pytest.fixture(scope="module")
def build_tree(tmp_path_factory) -> Path:
    """A copy of what a build may read: builds leave folders behind, and old ones would be packed again."""
    needed = PROJECT["build-system"]["requires"][0]
    try:
        found = int(version("setuptools").split(".")[0])
    except PackageNotFoundError:
        found = 0
    if found < int(re.findall(r"\d+", needed)[0]):
        pytest.skip(f"building offline needs {needed} here")
    tree = tmp_path_factory.mktemp("a tree")
    for name in ("app", "engine", "models", "packaging", "tests"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns(*NOT_SOURCE))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    return tree


def build(tree: Path, kind: str) -> Path:
    """Call setuptools as pip and build do, without fetching anything."""
    code = f"import setuptools.build_meta as b; b.build_{kind}('dist')"
    subprocess.run([sys.executable, "-c", code], cwd=tree, check=True, capture_output=True)
    return next((tree / "dist").glob("*.whl" if kind == "wheel" else "*.tar.gz"))


def wheel_files(wheel: Path) -> set[str]:
    return {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}


def test_the_wheel_holds_the_package_alone(build_tree):
    wheel = build(build_tree, "wheel")
    assert wheel_files(wheel) == package_files(ROOT)
    assert {"pinyon/py.typed", "pinyon/app/tui/chat.tcss", "pinyon/models/catalog_headers.json"} <= wheel_files(wheel)
    metadata = {name.partition(".dist-info/")[2] for name in zipfile.ZipFile(wheel).namelist()} - {""}
    assert metadata == {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE", "top_level.txt"}


def test_the_sdist_holds_what_a_build_needs_and_no_tests(build_tree):
    with tarfile.open(build(build_tree, "sdist")) as archive:
        names = {name.partition("/")[2] for member in archive if member.isfile() for name in [member.name]}
    sources = {path for path in names if path.startswith(("app/", "engine/", "models/", "packaging/"))}
    expected = {
        path.relative_to(ROOT).as_posix()
        for folder in FOLDERS.values()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and not NOT_SOURCE & set(path.parts)
    }
    assert sources == expected
    rest = {name for name in names - sources if not name.startswith("pinyon.egg-info/")}
    assert rest == {"LICENSE", "PKG-INFO", "README.md", "pyproject.toml", "setup.cfg"}


def test_a_wheel_without_a_data_file_is_found(build_tree, tmp_path):
    tree = tmp_path / "tree"
    shutil.copytree(build_tree, tree, ignore=shutil.ignore_patterns("build", "dist", "*.egg-info"))
    (tree / "app" / "forgotten.css").touch()
    assert package_files(tree) - wheel_files(build(tree, "wheel")) == {"pinyon/app/forgotten.css"}
