"""Makes .venv hold Pinyon and what it needs, for the scripts in this folder. Standard library only; speaks on stderr.

usage: install.py [--check] run|test

`--check` only tells, by its exit status, whether .venv is as pyproject.toml wants it; the interpreter of .venv runs it.
Otherwise .venv is made or brought up to date. A stamp is removed first and written last, so whatever stops an
installation half-way, the next run does it again; a lock keeps two of them apart.

The installation is a plain editable one. Its import hook looks into the folders themselves, so files added later are
seen at once; the strict mode links each file that is there at the time.
"""
# ruff: noqa: INP001  as a package this folder would hide the library `packaging`

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NoReturn

ROOT: Final = Path(__file__).resolve().parent.parent
VENV: Final = ROOT / ".venv"
VENV_PYTHON: Final = str(VENV / "bin" / "python")
STAMP: Final = VENV / "pinyon-stamp.json"
LOG: Final = VENV / "pinyon-install.log"

HEARTBEAT_S: Final = 15.0
KILL_GRACE_S: Final = 3.0
TAIL_LINES: Final = 30
INTERRUPTED: Final = 130
JOB_BYTES: Final = 1 << 30
"""What the compiler needs for the largest files of llama.cpp, with a margin."""

NO_AMX: Final = ("-mno-amx-tile", "-mno-amx-int8", "-mno-amx-bf16")
CGROUP_LIMITS: Final = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")

EXTRAS: Final = {"run": "", "test": "[test]"}
COVERED_BY: Final = {"run": ("run", "test"), "test": ("test",)}
NO_COMPILER: Final = """\
A C and C++ compiler is needed to build llama.cpp, and none was found that works.
  Debian, Ubuntu:  apt install build-essential
  Fedora:          dnf install gcc gcc-c++
  macOS:           xcode-select --install
With PINYON_PREBUILT=URL, an index of ready wheels for llama-cpp-python, none is needed."""


def say(text: str) -> None:
    print(f"pinyon: {text}", file=sys.stderr, flush=True)


def fail(text: str) -> NoReturn:
    say(text)
    sys.exit(1)


# --- what is installed ---


def identity(python: str) -> list[str]:
    """Return version and home of an interpreter; nothing if it does not start or is too old."""
    code = "import sys; print(sys.version_info[:2]); print(sys.base_prefix); sys.exit(sys.version_info < (3, 11))"
    try:
        asked = subprocess.run([python, "-I", "-S", "-c", code], capture_output=True, text=True, check=False)
    except OSError:
        return []
    return [] if asked.returncode else asked.stdout.splitlines()


def fingerprint(python: Sequence[str]) -> str:
    """Return a digest of everything that asks for a new installation when it changes."""
    return hashlib.sha256("\n".join([str(ROOT), *python]).encode() + (ROOT / "pyproject.toml").read_bytes()).hexdigest()


def prebuilt_digest() -> str | None:
    """Return a digest of PINYON_PREBUILT, which may hold a password."""
    index = os.environ.get("PINYON_PREBUILT")
    return hashlib.sha256(index.encode()).hexdigest() if index else None


def read_stamp() -> dict[str, str | None]:
    try:
        stamp: dict[str, str | None] = json.loads(STAMP.read_text())
    except (OSError, ValueError):
        return {}
    return stamp


def is_current(wanted: str) -> bool:
    """Whether .venv is as it should be. Only for the interpreter in .venv."""
    mine = [str(sys.version_info[:2]), sys.base_prefix]
    stamp = read_stamp()
    return (
        stamp.get("installed") in COVERED_BY[wanted]
        and stamp.get("fingerprint") == fingerprint(mine)
        and prebuilt_digest() in {None, stamp.get("prebuilt")}
        and (VENV / "bin" / "pinyon").exists()
        and is_asked_for(mine)
    )


def is_asked_for(python: Sequence[str]) -> bool:
    """Whether PYTHON is unset or names this interpreter."""
    asked = os.environ.get("PYTHON")
    return not asked or identity(asked) == python


# --- running pip ---


@contextlib.contextmanager
def sole_installer() -> Iterator[int]:
    """Hold a lock on this folder; yields its descriptor, which pip inherits so that an orphaned pip keeps the lock."""
    folder = os.open(ROOT / "packaging", os.O_RDONLY)
    try:
        waiting = Heartbeat("waiting for another installation into .venv")
        while True:
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                waiting.beat("")
                time.sleep(0.2)
            except OSError:  # a file system without locks
                break
        yield folder
    finally:
        os.close(folder)


class Heartbeat:
    """Says that work goes on: one line at a time, every HEARTBEAT_S seconds."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._started = self._last = time.monotonic()

    def beat(self, detail: str) -> None:
        now = time.monotonic()
        if now - self._last >= HEARTBEAT_S:
            self._last = now
            minutes, seconds = divmod(int(now - self._started), 60)
            say(f"{self._what}{detail}, {minutes}:{seconds:02} so far")


def compiled_so_far() -> str:
    """Return how far the compiler is, from the last `[12/345]` that ninja wrote to the log."""
    with LOG.open("rb") as log:
        log.seek(max(0, LOG.stat().st_size - 4096))
        steps = re.findall(rb"^\s*\[(\d+)/(\d+)\]", log.read(), re.MULTILINE)
    return f", step {steps[-1][0].decode()} of {steps[-1][1].decode()}" if steps else ""


def run_logged(what: str, command: Sequence[str], environment: Mapping[str, str], lock: int) -> bool:
    """Run a command with its output in the log, telling every HEARTBEAT_S that it runs; return whether it succeeded.

    Whatever ends this process (Ctrl+C, a signal, the shell that started it) ends the command's whole process group.
    """
    parent = os.getppid()
    heartbeat = Heartbeat(what)
    with LOG.open("ab") as log, tempfile.TemporaryDirectory(prefix="pinyon-install-") as scratch:
        child = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**environment, "TMPDIR": scratch},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=(lock,),
        )
        try:
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    return child.wait(0.2) == 0
                if os.getppid() != parent:
                    sys.exit(INTERRUPTED)
                heartbeat.beat(compiled_so_far())
        finally:
            end_group(child)


def end_group(child: "subprocess.Popen[bytes]") -> None:
    """End a child that runs still, with the compilers that it started."""
    if child.poll() is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(KILL_GRACE_S)
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def report_failure(what: str) -> NoReturn:
    tail = LOG.read_text("utf-8", "replace").splitlines()[-TAIL_LINES:]
    print("\n".join(tail), file=sys.stderr)
    if any("Killed" in line for line in tail):
        say(
            "the compiler was killed, which usually means too little memory: set CMAKE_BUILD_PARALLEL_LEVEL=1 and retry"
        )
    fail(f"{what} failed; above are the last lines of {LOG}")


# --- what the build needs ---


def jobs() -> int:
    """Return how many compilers may run at once: one a core, as far as memory goes."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores, free_bytes() // JOB_BYTES))


def free_bytes() -> int:
    """Return the memory that is available: free, and within the container's limit."""
    limits = [int(limit) for limit in map(read_line, CGROUP_LIMITS) if limit.isdigit()]
    try:
        meminfo = Path("/proc/meminfo").read_text()
        available = int(re.findall(r"MemAvailable:\s+(\d+) kB", meminfo)[0]) << 10
    except (OSError, IndexError):  # macOS: half of what the machine has
        available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    return min([available, *limits])


def read_line(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def succeeds(command: Sequence[str], stdin: str = "") -> bool:
    try:
        return subprocess.run(command, input=stdin.encode(), capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def compiles(compilers: Sequence[str], options: Sequence[str], language: str, program: str) -> bool:
    """Whether one of the compilers can build a program: a driver without its language, or without headers, is none."""
    with tempfile.TemporaryDirectory(prefix="pinyon-compiler-") as scratch:
        task = [*options, "-x", language, "-", "-o", f"{scratch}/program"]
        return any(succeeds([*shlex.split(compiler), *task], program) for compiler in compilers)


def has_compilers(*options: str) -> bool:
    """Whether there are compilers that work, and know these options."""
    if platform.system() == "Darwin" and not succeeds(["xcode-select", "-p"]):
        return False  # `cc` is there all the same, and opens a dialog
    for_c, for_cxx = os.environ.get("CC"), os.environ.get("CXX")
    return compiles(
        [for_c] if for_c else ["cc", "gcc", "clang"], options, "c", "int main(void) { return 0; }"
    ) and compiles(
        [for_cxx] if for_cxx else ["c++", "g++", "clang++"],
        options,
        "c++",
        "#include <thread>\nint main() { return 0; }",
    )


def flags() -> dict[str, str]:
    """Return the compilers' flags by variable: none of AMX, which some servers' processors have.

    GCC before 14 loses the set-up of its tiles (its PR114098), and llama.cpp then dies at its first step.
    """
    known = NO_AMX if platform.machine() == "x86_64" and has_compilers(*NO_AMX) else ()
    return {name: " ".join([*known, os.environ.get(name, "")]).strip() for name in ("CFLAGS", "CXXFLAGS")}


# --- the installation ---


def make_venv(python: str) -> None:
    """Make .venv, unless one is there that works and is the interpreter asked for."""
    found = identity(VENV_PYTHON)
    if found and is_asked_for(found) and succeeds([VENV_PYTHON, "-I", "-m", "pip", "--version"]):
        return
    say(f"making .venv with {python}")
    made = subprocess.run([python, "-I", "-m", "venv", "--clear", VENV], capture_output=True, text=True, check=False)
    if made.returncode:
        fail(f"{python} could not make {VENV}: {(made.stdout + made.stderr).strip()}")


def pinned_llama() -> str:
    """Return `llama-cpp-python==VERSION` as pyproject.toml has it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return next(str(name) for name in project["dependencies"] if name.startswith("llama-cpp-python=="))


def has_llama() -> bool:
    version = pinned_llama().partition("==")[2]
    return any(VENV.glob(f"lib/python*/site-packages/llama_cpp_python-{version}.dist-info/RECORD"))


def install_prebuilt(pip: Sequence[str], environment: Mapping[str, str], lock: int) -> bool:
    """Install llama-cpp-python from PINYON_PREBUILT and from nowhere else; tell when there is no wheel that fits.

    pip takes the compiled wheel over the source only if it finds one for this Python and this platform, and else
    compiles without a word: so here source is ruled out. The index is used for this one package.
    """
    index = {"PIP_INDEX_URL": os.environ["PINYON_PREBUILT"]}
    options = ["--no-deps", "--only-binary=:all:", "--force-reinstall"]
    say(f"installing {pinned_llama()} from PINYON_PREBUILT")
    if run_logged("fetching", [*pip, *options, pinned_llama()], {**environment, **index}, lock):
        return True
    say(f"PINYON_PREBUILT offers no wheel of {pinned_llama()} that fits here ({LOG} has the details)")
    return False


def install(wanted: str, lock: int) -> None:
    STAMP.unlink(missing_ok=True)
    make_venv(sys.executable)
    LOG.unlink(missing_ok=True)
    environment = {**os.environ, "PIP_USER": "0", "PIP_NO_INPUT": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    environment.setdefault("CMAKE_BUILD_PARALLEL_LEVEL", str(jobs()))
    pip = [VENV_PYTHON, "-I", "-m", "pip", "install", "--progress-bar=off"]
    if os.environ.get("PINYON_PREBUILT"):
        install_prebuilt(pip, environment, lock)
    what = "installing"
    if not has_llama():
        if not has_compilers():
            fail(NO_COMPILER)
        level = environment["CMAKE_BUILD_PARALLEL_LEVEL"]
        say(
            f"llama.cpp is compiled once, unless pip has kept it: about 5 minutes on 2 cores ({level} compilers at a time)"
        )
        what = "compiling"
        environment.update(flags())
    # -v: the compiler's output goes to the log, where it explains a failure and shows how far it is.
    if not run_logged(what, [*pip, "-v", "-e", f".{EXTRAS[wanted]}"], environment, lock):
        report_failure("the installation")
    stamp = {"installed": wanted, "fingerprint": fingerprint(identity(VENV_PYTHON)), "prebuilt": prebuilt_digest()}
    STAMP.write_text(json.dumps(stamp))
    say("installed")


def main() -> None:
    *options, wanted = sys.argv[1:]
    if "--check" in options:
        sys.exit(not is_current(wanted))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda _number, _frame: sys.exit(INTERRUPTED))
    with sole_installer() as lock:
        # Another run may have done it while this one waited.
        check = [VENV_PYTHON, "-I", __file__, "--check", wanted]
        if not Path(VENV_PYTHON).exists() or subprocess.run(check, check=False).returncode:
            install(wanted, lock)


if __name__ == "__main__":
    main()
