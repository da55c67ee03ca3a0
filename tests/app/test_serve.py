"""`pinyon serve`, and the commands that attach to it, as processes."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import threading

import httpx
import psutil
import pytest
from command_line import PINYON, assert_refused, environment, pinyon, serving
from served import until, worker_of
from tiny_models import write_tiny_llama

from pinyon.app.cli.ps import _duration
from pinyon.app.settings import Folders

ANSWER = ["run", "-m", "tiny", "--seed", "1", "--max-tokens", "30"]
FIGURES = ("load_s", "queue_s", "prefill_s", "decode_s", "prompt_tokens_per_s", "tokens_per_s")


@pytest.fixture(scope="module")
def make_home(tmp_path_factory, tiny):
    """Make homes with the tiny model; one thread, since a second one's barriers are slow where cores are shared."""

    def make():
        folder = tmp_path_factory.mktemp("home")
        (folder / "config").mkdir()
        (folder / "config" / "settings.toml").write_text("threads = 1\n")
        pinyon(folder, "add", tiny, "--name", "tiny", check=True)
        return folder

    return make


@pytest.fixture(scope="module")
def alone(make_home):
    """A home without a server."""
    return make_home()


@pytest.fixture(scope="module")
def home(make_home):
    return make_home()


@pytest.fixture(scope="module")
def server(home):
    with serving(home, "--preload") as started:
        yield started


@contextlib.contextmanager
def paused(process):
    """Stop a process for as long as the context lasts."""
    process.suspend()
    try:
        yield
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.resume()


def waiting(server):
    return httpx.get(f"{server.url}/health", trust_env=False).json()["engine"]["waiting"]


def started(home, *arguments):
    return subprocess.Popen(
        [*PINYON, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(home),
    )


def answers_given(server):
    lines = httpx.get(f"{server.url}/metrics", trust_env=False).text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("pinyon_requests_total"))


@pytest.mark.parametrize(
    "arguments",
    [
        [*ANSWER, "--deterministic", "hello"],
        ["run", "--deterministic", "--seed", "5", "--max-tokens", "20", "--no-template", "🫠 raw"],
        [*ANSWER, "--deterministic", "--system", "s", "--stop", "e", "--temperature", "0", "hello"],
        ["run", "-m", "tiny", "x" * 400],
        ["run", "-m", "tiny", "--temperature", "nan", "x"],
        ["run", "-m", "tiny", "--max-tokens", str(2**70), "x"],
        ["run", "-m", "nope", "x"],
    ],
    ids=["chat", "raw, model not named", "options", "too long", "not a number", "too large", "unknown model"],
)
def test_a_command_does_the_same_attached_as_alone(home, alone, server, arguments):
    before = answers_given(server)
    attached, local = pinyon(home, *arguments), pinyon(alone, *arguments)
    assert (attached.stdout, attached.stderr, attached.returncode) == (local.stdout, local.stderr, local.returncode)
    reached_the_engine = local.returncode in (0, 4) or "nan" in arguments
    assert answers_given(server) - before == reached_the_engine


def test_json_is_the_same_but_for_the_clock(home, alone, server):
    attached, local = (
        json.loads(pinyon(where, *ANSWER, "--json", "--no-cache", "--deterministic", "hello").stdout)
        for where in (home, alone)
    )
    assert {**attached, **dict.fromkeys(FIGURES)} == {**local, **dict.fromkeys(FIGURES)}
    assert attached["decode_s"] > 0


def test_a_larger_context_than_the_model_s_is_refused_as_without_a_server(home, alone, server):
    arguments = [*ANSWER, "--context", "9999", "x"]
    assert_refused(pinyon(home, *arguments), 4, "9,999", "256", "trained")
    assert pinyon(home, *arguments).stderr == pinyon(alone, *arguments).stderr
    assert pinyon(home, *ANSWER, "--context", "100", "x").returncode == 0


def test_models_are_loaded_as_they_are_named_and_all_of_them_are_listed(make_home, tmp_path):
    home = make_home()
    pinyon(home, "add", write_tiny_llama(tmp_path / "other model.gguf", seed=1), "--name", "other", check=True)
    with serving(home, "--model", "tiny") as server:
        for name in ("tiny", "other"):
            answer = json.loads(pinyon(home, "run", "-m", name, "--max-tokens", "2", "--json", "x").stdout)
            assert answer["model"] == name
        shown = pinyon(home, "ps").stdout.decode()
        assert "other (context 256 tokens, KV in f16, 1 thread)" in shown
        assert "planned" in shown
        assert_refused(pinyon(home, "rm", "tiny"), 2, "tiny is loaded in the server")
        last = {"model": "other", "prompt": "x", "max_tokens": 1, "keep_alive": 0}
        assert httpx.post(f"{server.url}/v1/completions", json=last, trust_env=False).status_code == 200
        assert [model["name"] for model in models(home)] == ["tiny"]
        assert pinyon(home, "rm", "other").returncode == 0
        answer = json.loads(pinyon(home, "run", "--max-tokens", "2", "--json", "x").stdout)
        assert answer["model"] == "tiny"


def models(home):
    (shown,) = json.loads(pinyon(home, "ps", "--json").stdout)["servers"]
    return shown["models"]


def test_the_second_server_is_told_who_the_first_is(home, server):
    assert_refused(pinyon(home, "serve", "--port", "0"), 1, str(server.pid), server.url, "pinyon stop")


def test_the_banner_says_where_for_whom_and_what(server):
    assert server.url.startswith("http://127.0.0.1:")
    assert b"Only programs on this machine" in server.banner
    assert b"tiny is loaded, with a context of 256 tokens" in server.banner


def test_ps_shows_the_server(home, server):
    (shown,) = json.loads(pinyon(home, "ps", "--json").stdout)["servers"]
    (model,) = shown["models"]
    assert (shown["url"], shown["pid"], model["name"], model["context_tokens"]) == (
        server.url,
        server.pid,
        "tiny",
        256,
    )
    assert (shown["engine_state"], shown["running"], shown["waiting"]) == ("ready", 0, 0)
    assert (model["meters"]["cells"], model["meters"]["held_cells"]) == (256, 0)
    planned = model["memory"]
    assert (planned["kv_type"], planned["kv_bytes"], planned["compromises"]) == ("f16", 256 * 2 * 2 * 32 * 2, [])
    assert planned["ram_bytes"] > planned["weights_bytes"] > 0
    assert planned["taken"]["kv_bytes"] == pytest.approx(planned["kv_bytes"], abs=(1 << 20) // 100)
    table = pinyon(home, "ps").stdout.decode()
    meters = ("0 of 256 tokens in use", "MB in memory", "used by the engine", "of RAM: weights", "as llama.cpp tells")
    for words in ("tiny (context 256 tokens", server.url, str(server.pid), "0 running, 0 waiting", *meters):
        assert words in table


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00:00"), (3661, "1:01:01"), (200_000, "2 d 7:33:20")])
def test_uptime_is_readable(seconds, text):
    assert _duration(seconds) == text


def test_ctrl_c_ends_an_attached_answer_in_good_order(home, server):
    with paused(worker_of(server)), started(home, *ANSWER, "--stats", "hello") as command:
        until(lambda: waiting(server) == 1)
        command.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            command.wait(0.2)  # it waits for the last event
        worker_of(server).resume()
        _, errors = command.communicate(timeout=20)
    assert command.returncode == 130
    assert json.loads(errors)["finish_reason"] == "cancelled"


def test_a_command_that_is_killed_leaves_nothing_in_the_server(home, server):
    with paused(worker_of(server)), started(home, *ANSWER, "hello") as command:
        until(lambda: waiting(server) == 1)
        command.kill()
        until(lambda: waiting(server) == 0)
    assert pinyon(home, *ANSWER, "hello").returncode == 0


def test_a_killed_worker_costs_its_answers_only(home, server):
    worker = worker_of(server)
    with paused(worker), started(home, *ANSWER, "hello") as command:
        until(lambda: waiting(server) == 1)
        worker.kill()
        output, errors = command.communicate(timeout=20)
    assert_refused(subprocess.CompletedProcess([], command.returncode, output, errors), 1, "died", "SIGKILL")
    assert pinyon(home, *ANSWER, "hello").returncode == 0
    assert worker_of(server).pid != worker.pid


def test_the_server_leaves_no_core_dumps(server):
    with open(f"/proc/{server.pid}/limits") as limits:
        (line,) = (line for line in limits if line.startswith("Max core file size"))
    assert line.split()[4:6] == ["0", "0"]


def test_a_killed_server_leaves_nothing_in_the_way(make_home, alone):
    home = make_home()
    with serving(home, "--preload") as server:
        worker = worker_of(server)
        with paused(worker), started(home, *ANSWER, "hello") as command:
            until(lambda: waiting(server) == 1)
            server.kill()
            output, errors = command.communicate(timeout=20)
        assert_refused(subprocess.CompletedProcess([], command.returncode, output, errors), 1, server.url, "died")
        assert errors.count(b"\n") == 1
        until(lambda: not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE, limit_s=2)
        server.wait()
    assert pinyon(home, *ANSWER, "hello").stdout == pinyon(alone, *ANSWER, "hello").stdout
    assert json.loads(pinyon(home, "ps", "--json").stdout) == {"servers": []}
    port = server.url.rpartition(":")[2]
    with serving(home, "--port", port) as again:
        assert again.url == server.url
        assert b"The model that a request names" in again.banner


def test_sigterm_lets_answers_finish_and_takes_nothing_new(make_home, alone):
    home = make_home()
    with serving(home, "--preload") as server, contextlib.ExitStack() as stack:
        worker = worker_of(server)
        stack.enter_context(paused(worker))
        command = stack.enter_context(started(home, *ANSWER, "hello"))
        until(lambda: waiting(server) == 1)
        server.send_signal(signal.SIGTERM)
        until(lambda: httpx.get(f"{server.url}/health", trust_env=False).json()["status"] == "shutting_down")
        refused = httpx.post(f"{server.url}/v1/completions", json={"prompt": "x"}, trust_env=False)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
        assert_refused(pinyon(home, *ANSWER, "hello"), 1, "shutting down")
        worker.resume()
        output, errors = command.communicate(timeout=20)
        assert server.wait(20) == 0
        assert b"Traceback" not in server.stderr.read()
        assert server.stdout.read() == b""
    assert (output, errors, command.returncode) == (pinyon(alone, *ANSWER, "hello").stdout, b"", 0)


def test_stop_ends_the_server_and_says_so(make_home):
    home = make_home()
    with serving(home, "--model", "tiny") as server:
        assert b"tiny is loaded with the first request" in server.banner
        stopped = pinyon(home, "stop")
        assert (stopped.returncode, server.wait(5)) == (0, 0)
    assert server.url in stopped.stderr.decode()
    again = pinyon(home, "stop")
    assert (again.returncode, again.stderr) == (0, b"no server is running\n")
    assert pinyon(home, "ps").stderr == b"no server is running\n"


def test_a_token_is_taken_along(make_home, tmp_path):
    home = make_home()
    with serving(home, "--token-file", str(tmp_path / "token")) as server:
        assert httpx.get(f"{server.url}/v1/models", trust_env=False).status_code == 401
        before = pinyon(home, *ANSWER, "hello")
        (shown,) = json.loads(pinyon(home, "ps", "--json").stdout)["servers"]
    assert (before.returncode, [model["name"] for model in shown["models"]]) == (0, ["tiny"])


def test_a_stranger_on_the_port_of_a_stale_file_gets_neither_prompt_nor_token(make_home, alone, tmp_path):
    """It answers every request, with a proof of its own making."""
    home = make_home()
    token_file = tmp_path / "token"
    token_file.write_text("the-token-of-this-user")
    received = []

    def answer(listener):
        with contextlib.suppress(OSError):  # closed at the end
            while True:
                connection, _ = listener.accept()
                with connection:
                    received.append(connection.recv(65536))
                    connection.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 24\r\n\r\n{"proof": "0123456789ab"}')

    with socket.create_server(("127.0.0.1", 0)) as listener:
        runtime = Folders.of_user({"PINYON_HOME": str(home)}).runtime
        runtime.mkdir(mode=0o700)
        found = {"url": f"http://127.0.0.1:{listener.getsockname()[1]}", "pid": os.getpid(), "nonce": "stale"}
        (runtime / "server.json").write_text(json.dumps({**found, "token_file": str(token_file)}))
        (runtime / "server.json").chmod(0o600)
        stranger = threading.Thread(target=answer, args=(listener,), daemon=True)
        stranger.start()
        done = pinyon(home, *ANSWER, "my secret prompt")
        assert pinyon(home, "stop").stderr == b"no server is running\n"
        listener.shutdown(socket.SHUT_RDWR)
        stranger.join(5)
    assert done.stdout == pinyon(alone, *ANSWER, "my secret prompt").stdout
    assert len(received) == 2
    for request in received:
        assert request.startswith(b"GET /pinyon/identity?challenge=")
        assert b"secret" not in request
        assert b"token" not in request
    assert not (runtime / "server.json").exists()


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--model", "nope"], 3, ["no model named nope"]),
        (["--context", "9999", "--preload"], 4, ["9,999", "256"]),
        (["--host", "0.0.0.0"], 2, ["--token-file"]),
        (["--port", "65536"], 2, ["--port"]),
    ],
    ids=["unknown model", "too large", "open to all", "no port"],
)
def test_a_server_that_cannot_start_says_why(alone, options, code, words):
    assert_refused(pinyon(alone, "serve", "--port", "0", *options), code, *words)


def test_a_model_of_the_settings_that_is_not_here_is_told_at_the_start(alone):
    assert_refused(pinyon(alone, "serve", "--port", "0", PINYON_MODEL="nope"), 3, "no model named nope")


def test_what_does_not_fit_is_refused_with_the_numbers_and_loaded_all_the_same_where_that_is_wanted(make_home):
    home = make_home()
    with (home / "config" / "settings.toml").open("a") as settings:
        settings.write("[headroom_mib]\nRAM = 100000000\n")

    def refused_and_forced():
        assert_refused(pinyon(home, *ANSWER, "hello"), 4, "tiny needs", " 0 MiB are free for it", "--force")
        forced = pinyon(home, *ANSWER, "--force", "hello")
        assert (forced.returncode, b"MiB more of RAM than is free" in forced.stderr) == (0, True)
        return forced.stdout

    alone = refused_and_forced()
    assert_refused(pinyon(home, "serve", "--port", "0", "--model", "tiny", "--preload"), 4, "tiny needs")
    with serving(home, PINYON_KEEP_ALIVE_S="0"):
        assert refused_and_forced() == alone
