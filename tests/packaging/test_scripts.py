"""try.sh, test.sh and install.py, on a small project that installs offline: it has its own build backend."""

import importlib.util
import os
import pty
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]

PYPROJECT = """\
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]

[project]
name = "pinyon"
version = "1"
dependencies = ["llama-cpp-python==9.9.9"]
optional-dependencies.test = []
"""

BACKEND = """\
import os, zipfile
METADATA = "Name: pinyon\\nVersion: 1\\nRequires-Dist: llama-cpp-python==9.9.9\\nProvides-Extra: test\\n"
def build_editable(folder, *_):
    if os.environ.get("FAIL"):
        raise SystemExit("error: the disk is on fire")
    files = {
        "pinyon.pth": os.getcwd() + "/src\\n",
        "pinyon-1.dist-info/METADATA": "Metadata-Version: 2.1\\n" + METADATA,
        "pinyon-1.dist-info/WHEEL": "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
        "pinyon-1.dist-info/entry_points.txt": "[console_scripts]\\npinyon = pinyon.command:main\\npytest = pinyon.command:main\\n",
    }
    files["pinyon-1.dist-info/RECORD"] = "".join(f"{name},,\\n" for name in [*files, "pinyon-1.dist-info/RECORD"])
    with zipfile.ZipFile(os.path.join(folder, "pinyon-1-py3-none-any.whl"), "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
    return "pinyon-1-py3-none-any.whl"
"""

MODULES = {
    "command.py": """\
import os, sys
from pathlib import Path
def main():
    if sys.argv[1:] == ["pull", "smollm2"]:
        Path(os.environ["PINYON_HOME"]).write_text("here")
        print("pulled", file=sys.stderr)
    else:
        print(os.getcwd(), *sys.argv[1:], "" if sys.stdin.isatty() else sys.stdin.read(), sep="|")
""",
    "app/settings.py": """\
import os
class Folders:
    models = os.environ["PINYON_HOME"]
    @classmethod
    def of_user(cls):
        return cls
""",
    "models/store.py": """\
class Store:
    def __init__(self, models):
        self.models = models
    def resolve(self, name):
        return open(self.models)
    def ensure_runnable(self, record):
        return record
""",
}


def write_llama_wheel(index: Path, tag: str) -> str:
    """A package index with one wheel of llama-cpp-python; returns its URL."""
    name = "llama_cpp_python-9.9.9"
    folder = index / "llama-cpp-python"
    folder.mkdir(parents=True)
    record = f"{name}.dist-info/RECORD"
    with zipfile.ZipFile(folder / f"{name}-{tag}.whl", "w") as wheel:
        wheel.writestr(f"{name}.dist-info/METADATA", "Metadata-Version: 2.1\nName: llama-cpp-python\nVersion: 9.9.9\n")
        wheel.writestr(f"{name}.dist-info/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n")
        wheel.writestr(record, f"{name}.dist-info/METADATA,,\n{name}.dist-info/WHEEL,,\n{record},,\n")
    (folder / "index.html").write_text(f'<a href="{name}-{tag}.whl">{name}-{tag}.whl</a>')
    return index.as_uri()


class Project:
    """The scripts beside a project of their kind, in a folder whose name has spaces."""

    def __init__(self, root: Path) -> None:
        self.root = root / "my pinyon"
        self.elsewhere = root
        shutil.copytree(ROOT / "packaging", self.root / "packaging", ignore=shutil.ignore_patterns("__pycache__"))
        (self.root / "pyproject.toml").write_text(PYPROJECT)
        (self.root / "backend.py").write_text(BACKEND)
        for name, source in MODULES.items():
            path = self.root / "src" / "pinyon" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(source)
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PINYON_", "PYTHON"))},
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_NO_INDEX": "0",
            "PIP_INDEX_URL": (root / "empty index").as_uri(),
            "PINYON_HOME": str(root / "model"),
            "PINYON_PREBUILT": write_llama_wheel(root / "index", "py3-none-any"),
            "PYTHON": sys.executable,
        }

    def run(
        self, script: str, *arguments: str, piped: str = "", **environment: str
    ) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            ["sh", self.root / "packaging" / script, *arguments],
            cwd=self.elsewhere,
            env={**self.environment, **environment},
            input=piped,
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Project:
    return Project(tmp_path_factory.mktemp("scripts"))


@pytest.fixture(scope="module")
def first_run(project):
    return project.run("try.sh", "Hello there", "--json")


def test_the_first_run_installs_pulls_and_answers(project, first_run):
    assert first_run.returncode == 0, first_run.stderr
    assert first_run.stdout == f"{project.elsewhere}|run|-m|smollm2|Hello there|--json|\n"
    for said in ("making .venv", "from PINYON_PREBUILT", "installed", "pulled"):
        assert said in first_run.stderr
    assert "compiled" not in first_run.stderr


def test_the_second_run_only_answers(project, first_run):
    second = project.run("try.sh", "Summarise:", piped="from a pipe")
    assert second.stdout == f"{project.elsewhere}|run|-m|smollm2|Summarise:|from a pipe\n"
    assert second.stderr == ""


def test_without_the_index_variable_what_is_installed_stays(project, first_run):
    assert project.run("try.sh", "x", PINYON_PREBUILT="").stderr == ""


def test_the_tests_run_in_the_same_environment(project, first_run):
    tests = project.run("test.sh", "-k", "this one")
    assert tests.stdout == f"{project.root}|-n|2|--dist|worksteal|-k|this one|\n"
    assert "making .venv" not in tests.stderr
    assert project.run("test.sh").stderr == ""
    assert project.run("try.sh", "x").stderr == "", "what the tests need covers what a run needs"


def test_an_installation_that_did_not_finish_is_done_again(project, first_run):
    (project.root / ".venv" / "pinyon-stamp.json").unlink()
    again = project.run("try.sh", "x")
    assert "installed" in again.stderr
    assert again.returncode == 0


def test_a_damaged_environment_is_made_anew(project, first_run):
    (project.root / ".venv" / "bin" / "python").unlink()
    again = project.run("try.sh", "x")
    assert "making .venv" in again.stderr
    assert again.returncode == 0


def test_a_change_of_the_project_is_installed_and_a_failure_shown(project, first_run):
    pyproject = project.root / "pyproject.toml"
    pyproject.write_text(pyproject.read_text() + "# changed\n")
    failed = project.run("try.sh", "x", FAIL="1")
    assert failed.returncode == 1
    assert failed.stdout == ""
    assert "the disk is on fire" in failed.stderr
    assert str(project.root / ".venv" / "pinyon-install.log") in failed.stderr
    assert project.run("try.sh", "x").returncode == 0


def test_an_index_without_a_fitting_wheel_is_told(project, first_run, tmp_path):
    index = write_llama_wheel(tmp_path, "py3-none-unknown_machine")
    told = project.run("try.sh", "x", PINYON_PREBUILT=index)
    assert "no wheel of llama-cpp-python==9.9.9 that fits here" in told.stderr
    assert told.returncode == 0, "an older installation of the same version is still there"


def test_no_prompt_on_a_terminal_is_told_before_anything_is_installed(tmp_path):
    project = Project(tmp_path)
    ours, theirs = pty.openpty()
    try:
        asked = subprocess.run(
            ["sh", project.root / "packaging/try.sh"], stdin=theirs, capture_output=True, check=False
        )
    finally:
        os.close(ours)
        os.close(theirs)
    assert asked.returncode == 2
    assert b"usage" in asked.stderr
    assert not (project.root / ".venv").exists()


@pytest.fixture
def bare_path(tmp_path) -> Path:
    """A folder for PATH with nothing but what the script itself calls."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in ("dirname", "sh"):
        (folder / tool).symlink_to(shutil.which(tool) or tool)
    return folder


def write_python(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def test_a_machine_without_python_is_told_what_to_install(tmp_path, bare_path):
    write_python(bare_path, "python3", "exit 1")  # too old
    refused = Project(tmp_path).run("try.sh", "x", PATH=str(bare_path), PYTHON="")
    assert refused.returncode == 1
    for said in ("Python 3.11 or newer", "apt install", "dnf install", "brew install"):
        assert said in refused.stderr


def test_a_python_without_venv_is_told(tmp_path, bare_path):
    write_python(bare_path, "python3.12", 'case "$*" in *ensurepip*) exit 1 ;; esac')
    refused = Project(tmp_path).run("try.sh", "x", PATH=str(bare_path), PYTHON="")
    assert refused.returncode == 1
    assert "python3.12 cannot make virtual environments" in refused.stderr


def test_a_wrong_choice_of_python_is_told(tmp_path):
    refused = Project(tmp_path).run("try.sh", "x", PYTHON="no-such-python")
    assert refused.returncode == 1
    assert "PYTHON is no-such-python" in refused.stderr


@pytest.fixture
def install(tmp_path, monkeypatch) -> Iterator[ModuleType]:
    """install.py as a module, with its log elsewhere and a quick heart."""
    spec = importlib.util.spec_from_file_location("pinyon_install", ROOT / "packaging" / "install.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "LOG", tmp_path / "install.log")
    monkeypatch.setattr(module, "HEARTBEAT_S", 0.1)
    with (tmp_path / "lock").open("w") as lock:
        module.lock = lock.fileno()
        yield module


def test_long_work_is_told_with_its_progress(install, capfd):
    code = "import time; print('[3/90] Building', flush=True); time.sleep(1)"
    assert install.run_logged("compiling", [sys.executable, "-c", code], os.environ, install.lock)
    out, err = capfd.readouterr()
    assert out == ""
    assert "pinyon: compiling, step 3 of 90, 0:00 so far" in err


def test_a_failure_is_told_by_the_end_of_the_log(install, capfd):
    code = "print(*range(100), sep='\\n'); print('c++: fatal error: Killed signal'); raise SystemExit(1)"
    assert not install.run_logged("compiling", [sys.executable, "-c", code], os.environ, install.lock)
    with pytest.raises(SystemExit):
        install.report_failure("the installation")
    err = capfd.readouterr().err.splitlines()
    assert err[0] == "71"
    assert "CMAKE_BUILD_PARALLEL_LEVEL=1" in err[-2]


@pytest.mark.parametrize("way", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_whatever_ends_an_installation_ends_its_compilers(tmp_path, way):
    """A stand-in for pip starts a stand-in for a compiler, which must not outlive the script."""
    compiler = tmp_path / "compiler.pid"
    (tmp_path / "packaging").mkdir()
    (tmp_path / ".venv").mkdir()
    shutil.copy(ROOT / "packaging" / "install.py", tmp_path / "packaging")
    pip = f"""\
import pathlib, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
pathlib.Path({str(compiler)!r}).write_text(f"{{child.pid}}")
child.wait()
"""
    driver = f"""\
import os, sys
sys.path.insert(0, {str(tmp_path / "packaging")!r})
import install
install.install = lambda wanted, lock: install.run_logged("installing", [sys.executable, "-c", {pip!r}], os.environ, lock)
sys.argv[1:] = ["run"]
install.main()
"""
    script = subprocess.Popen([sys.executable, "-c", driver])
    wait_until(lambda: compiler.exists() and compiler.read_text())
    pid = int(compiler.read_text())
    script.send_signal(way)
    assert script.wait(10) == 130
    wait_until(lambda: not is_running(pid))


def wait_until(condition, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    """Whether a process is there and is no zombie that nobody has collected."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_compilers_are_as_many_as_cores_and_memory_allow(install, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)), raising=False)
    for free_bytes, jobs in ((100 << 30, 8), (3 << 30, 3), (100 << 20, 1)):
        monkeypatch.setattr(install, "free_bytes", lambda value=free_bytes: value)
        assert install.jobs() == jobs


def test_the_limit_of_a_container_counts(install, tmp_path, monkeypatch):
    (tmp_path / "limit").write_text("123456789\n")
    (tmp_path / "none").write_text("max\n")
    monkeypatch.setattr(install, "CGROUP_LIMITS", (str(tmp_path / "limit"), str(tmp_path / "none"), "missing"))
    assert install.free_bytes() == 123456789


def test_a_missing_compiler_is_found_out(install, tmp_path, monkeypatch):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not install.has_compilers()
    write_python(tmp_path, "cc", "exit 0")
    assert not install.has_compilers(), "C without C++"
    write_python(tmp_path, "g++", "exit 0")
    monkeypatch.setattr("platform.system", lambda: "Linux")
    assert install.has_compilers()


def test_amx_is_left_out_where_the_compilers_know_it(install, tmp_path, monkeypatch):
    for compiler, script in (("knows", ""), ("too", ""), ("old", 'case "$*" in *amx*) exit 1;; esac')):
        write_python(tmp_path, compiler, script)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr("platform.system", lambda: "Linux")
    monkeypatch.setenv("CC", str(tmp_path / "knows"))
    monkeypatch.setenv("CXX", str(tmp_path / "too"))
    monkeypatch.setenv("CFLAGS", "-g")
    monkeypatch.delenv("CXXFLAGS", raising=False)
    without = "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"
    assert install.flags() == {"CFLAGS": f"{without} -g", "CXXFLAGS": without}
    monkeypatch.setenv("CXX", str(tmp_path / "old"))
    assert install.flags() == {"CFLAGS": "-g", "CXXFLAGS": ""}
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    monkeypatch.setenv("CXX", str(tmp_path / "too"))
    assert install.flags() == {"CFLAGS": "-g", "CXXFLAGS": ""}
