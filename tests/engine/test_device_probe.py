"""ggml's devices come from a child; whatever becomes of it is told in a sentence."""

import os
import signal
import sys
import time
from types import SimpleNamespace

import msgspec
import psutil
import pytest

from pinyon.engine import native
from pinyon.engine.device import Device, DeviceKind
from pinyon.engine.device_probe import Found, may_have_gpus, probe_devices
from pinyon.engine.errors import EngineCrashedError, EngineStartError, EngineStuckError

GPU = Device("CUDA0", "A large GPU", DeviceKind.GPU, 20 << 30, 24 << 30)


def child(code):
    return (sys.executable, "-c", code)


def printing(text):
    return child(f"print({text!r})")


def test_the_devices_are_ggml_s_own():
    found = probe_devices()
    assert found.build == native.check_binding()
    assert [(device.name, device.kind) for device in found.devices] == [
        (device.name, device.kind) for device in native.backend_devices()
    ]
    assert DeviceKind.CPU in {device.kind for device in found.devices}


def test_an_answer_is_read_as_it_was_written():
    found = Found("a build", (GPU,))
    assert probe_devices(command=printing(msgspec.json.encode(found).decode())) == found


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import os; os.abort()", "signal SIGABRT"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "signal SIGSEGV"),
        ("raise RuntimeError('no driver')", r"exit status 1.*RuntimeError: no driver"),
        (
            "import sys; print('\\n\\udcff cannot open\\n', file=sys.stderr); sys.exit(3)",
            r"exit status 3.*cannot open$",
        ),
        ("import sys; sys.exit(3)", r"exit status 3.*at last: nothing"),
    ],
)
def test_a_death_is_told_with_how_and_the_last_words(code, words):
    with pytest.raises(EngineCrashedError, match=words):
        probe_devices(command=child(code))


@pytest.mark.parametrize(
    "text", ["", "CUDA error", "{}", '{"build": 1, "devices": []}', '{"build": "b", "devices": [{}]}']
)
def test_an_answer_that_is_none_is_told(text):
    with pytest.raises(EngineCrashedError, match="gave no answer that can be read"):
        probe_devices(command=printing(text))


def test_a_driver_that_hangs_is_not_waited_for_and_leaves_nothing(tmp_path):
    place = tmp_path / "pid"
    code = f"import os, time; open({str(place)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    with pytest.raises(EngineStuckError, match="took more than 1 s"):
        probe_devices(time_limit_s=1.0, command=child(code))
    assert not psutil.pid_exists(int(place.read_text()))


def test_a_child_that_cannot_be_started_is_told():
    with pytest.raises(EngineStartError, match="cannot be started"):
        probe_devices(command=("/nonexistent/python",))


def test_the_child_sees_no_secrets(monkeypatch):
    monkeypatch.setenv("SOME_TOKEN", "secret")
    told = child("import json, os; print(json.dumps({'build': str('SOME_TOKEN' in os.environ), 'devices': []}))")
    assert probe_devices(command=told).build == "False"


@pytest.mark.skipif(sys.platform == "win32", reason="no alarms")
def test_a_child_whose_parent_died_ends_by_itself():
    """A driver that hangs is native code: only a signal ends it."""
    code = (
        "from pinyon.engine import device_child; import time; device_child.backend_devices = lambda: time.sleep(600);"
        "device_child.main()"
    )
    pid = os.posix_spawn(sys.executable, [sys.executable, "-c", code, "0.05"], os.environ)
    deadline = time.monotonic() + 60
    while not (ended := os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert os.waitpid(pid, 0)[1] == signal.SIGALRM == ended.si_status


def test_what_drivers_print_does_not_spoil_the_answer():
    code = (
        "from pinyon.engine import device_child; import os; device_child.backend_devices = lambda: os.write(1, b'found 1') and ();"
        "device_child.main()"
    )
    assert probe_devices(command=child(code)) == Found(native.check_binding(), ())


@pytest.mark.parametrize(
    ("names", "may_have"),
    [
        (["libllama.so", "libggml.so", "libggml-base.so.0", "libggml-cpu-haswell.so", "libmtmd.so", "README"], False),
        (["libllama.so", "libggml-cpu.so", "libggml-cuda.so"], True),
        (["llama.dll", "ggml.dll", "ggml-vulkan.dll"], True),
        (["libllama.dylib", "libggml-metal.dylib"], True),
        (["libllama.dylib", "libggml-blas.dylib"], False),
        ([], False),
    ],
)
def test_gpus_are_looked_for_only_where_llama_cpp_was_built_for_some(tmp_path, monkeypatch, names, may_have):
    (tmp_path / "lib").mkdir()
    for name in names:
        (tmp_path / "lib" / name).touch()
    found = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: found)
    may_have_gpus.cache_clear()
    try:
        assert may_have_gpus() is may_have
    finally:
        may_have_gpus.cache_clear()
