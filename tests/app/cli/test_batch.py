"""`pinyon batch` over a fake model: what it writes, what it asks again, how it ends."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from command_line import PINYON, environment, pinyon, serving
from fake_backend import ChatModel, called, faked
from fake_service import says

from pinyon.app.cli.batch import AT_ONCE, _Answering, command
from pinyon.app.cli.batch_files import held
from pinyon.app.cli.failures import ExitCode
from pinyon.app.errors import BusyError, GenerationFailedError, ServerError, UsageError
from pinyon.app.settings import Folders
from pinyon.engine.errors import EngineCrashedError, EngineError, ModelQuarantinedError, NativeError, OverloadedError
from pinyon.engine.request import Priority
from pinyon.models.errors import ModelNotFoundError


@pytest.fixture(autouse=True)
def here(monkeypatch, tmp_path):
    monkeypatch.setenv("PINYON_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def echo(_id, tokens, generated):
    """The prompt's last letter, three times."""
    text = bytes(token for token in tokens if token < 256)
    letter = text.split(b"user: ")[1][0]
    return letter if generated < 3 else says("")(None, None, 0)


@pytest.fixture
def batch(here, monkeypatch):
    """Write an input, run the batch over a model, return the answers by id; `backend` is that of the last run."""

    def run(*lines, arguments=(), model=None, code=ExitCode.OK, before_second_load=None):
        (here / "in.jsonl").write_text("\n".join(map(json.dumps, lines)))
        backend = run.backend = faked(monkeypatch, model or ChatModel(echo))
        load = backend.load

        async def loaded(*arguments):
            if backend.loads and before_second_load is not None:
                before_second_load(backend)
            return await load(*arguments)

        backend.load = loaded
        assert called(command, "in.jsonl", "out.jsonl", "-m", "fake", *arguments) == code
        return written(here)

    return run


def written(here):
    lines = [json.loads(line) for line in (here / "out.jsonl").read_text().splitlines()]
    return {line["id"]: line["text"] for line in lines}


def test_each_line_is_answered(batch, here, capsys):
    assert batch({"prompt": "a"}, {"id": "x", "prompt": "b"}) == {1: "aaa", "x": "bbb"}
    assert capsys.readouterr() == ("", "pinyon: 2 of 2 answered, 0 failed\n")
    first = json.loads((here / "out.jsonl").read_text().splitlines()[0])
    assert list(first)[:3] == ["id", "asked", "text"]
    assert (first["model"], first["finish_reason"], first["completion_tokens"]) == ("fake", "stop", 3)


def test_a_terminal_sees_how_far_it_is(batch, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    batch({"prompt": "a"}, {"prompt": "b"})
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "2/2" in printed.err


def test_answers_come_several_at_once(batch):
    model = ChatModel(echo, sequence_ids=AT_ONCE)
    most = 0
    step = model.step

    def watched():
        nonlocal most
        most = max(most, len(model._streams))
        step()

    model.step = watched
    letters = "abcdefghijklmnopqrst"
    assert batch(*({"prompt": letter} for letter in letters), model=model) == {
        number: letter * 3 for number, letter in enumerate(letters, 1)
    }
    assert most == AT_ONCE


def test_options_reach_the_model(batch):
    model = ChatModel(echo)
    arguments = ["-s", "Be brief.", "-o", "seed=3", "--private", "--no-cache", "--schema", "name"]
    batch({"prompt": "a"}, arguments=arguments, model=model)
    (ask,) = model.asked
    assert [message.content for message in ask.prompt.messages] == ["Be brief.", "a"]
    assert (ask.sampling.seed, ask.private, ask.use_cache) == (3, True, False)
    assert '"required": ["name"]' in ask.grammar.source


def test_what_is_answered_is_not_asked_again(batch, capsys):
    batch({"prompt": "a"}, {"prompt": "b"})
    model = ChatModel(echo)
    assert batch({"prompt": "a"}, {"prompt": "b"}, {"prompt": "c"}, model=model) == {1: "aaa", 2: "bbb", 3: "ccc"}
    assert len(model.asked) == 1
    assert capsys.readouterr().err.endswith("3 of 3 answered, 0 failed\n")


def test_a_line_that_a_kill_cut_off_is_answered_again(batch, here):
    batch({"prompt": "a"}, {"prompt": "b"})
    data = (here / "out.jsonl").read_bytes()
    (here / "out.jsonl").write_bytes(data[:-20])
    model = ChatModel(echo)
    assert batch({"prompt": "a"}, {"prompt": "b"}, model=model) == {1: "aaa", 2: "bbb"}
    assert len(model.asked) == 1


@pytest.mark.parametrize("change", [{"prompt": "z"}, {"prompt": "a", "options": {"seed": 1}}])
def test_an_answer_to_something_else_is_not_taken_for_one(batch, here, change):
    batch({"prompt": "a"})
    before = (here / "out.jsonl").read_bytes()
    with pytest.raises(UsageError, match="answers 1 already, but to another prompt"):
        batch(change)
    assert (here / "out.jsonl").read_bytes() == before


def test_a_failure_costs_its_own_line_only_and_can_be_tried_again(batch, capsys):
    def fails_at_b(request_id, tokens, generated):
        if bytes(token for token in tokens if token < 256).startswith(b"user: b"):
            raise NativeError("gone\x1b")
        return echo(request_id, tokens, generated)

    lines = [{"prompt": "b"}]
    with_failure = ChatModel(fails_at_b)
    assert batch(*lines, model=with_failure, code=ExitCode.FAILED) == {}
    assert capsys.readouterr().err == "pinyon: 1: gone\\x1b\npinyon: 0 of 1 answered, 1 failed\n"
    assert batch(*lines, {"prompt": "a"}) == {1: "bbb", 2: "aaa"}


def test_where_nobody_reads_of_failures_the_batch_goes_on(batch, monkeypatch):
    class Closed:
        def write(self, _text):
            raise BrokenPipeError

        def isatty(self):
            return False

    monkeypatch.setattr(sys, "stderr", Closed())
    lines = [{"prompt": "a" * 100}, {"prompt": "b"}]
    assert batch(*lines, model=ChatModel(echo, cells=64), code=ExitCode.FAILED) == {2: "bbb"}


def test_a_prompt_that_does_not_fit_is_told(batch, capsys):
    model = ChatModel(echo, cells=64)
    assert batch({"prompt": "a" * 100}, {"prompt": "a"}, model=model, code=ExitCode.FAILED) == {2: "aaa"}
    assert "pinyon: 1: " in capsys.readouterr().err


class MortalModel(ChatModel):
    """Its process dies under the asks with these numbers, or they raise what is given for them."""

    def __init__(self, deaths):
        super().__init__(echo)
        self.deaths = deaths
        self.begun = 0

    async def generate(self, ask):
        self.begun += 1
        death = self.deaths.get(self.begun)
        await asyncio.sleep(0)  # the others begin
        if death is None:
            async for event in super().generate(ask):
                yield event
            return
        self.asked.append(ask)
        if not isinstance(death, EngineError):
            raise death
        yield death.as_event()


def asked_letters(model):
    return [ask.prompt.messages[-1].content for ask in model.asked]


LETTERS = [{"prompt": letter} for letter in "abcd"]
DEAD = EngineCrashedError("the server died")


@pytest.fixture
def one_at_a_time(monkeypatch):
    monkeypatch.setattr("pinyon.app.cli.batch.AT_ONCE", 1)


@pytest.mark.parametrize("death", [DEAD, ServerError("it is gone"), BusyError("full"), ModelQuarantinedError("twice")])
def test_where_the_model_is_lost_it_is_loaded_again_and_the_line_asked_again(batch, capsys, death, one_at_a_time):
    model = MortalModel({2: death})
    assert batch(*LETTERS, model=model) == {1: "aaa", 2: "bbb", 3: "ccc", 4: "ddd"}
    assert asked_letters(model) == ["a", "b", "b", "c", "d"]
    assert batch.backend.loads == ["fake", "fake"]
    assert capsys.readouterr().err == f"pinyon: {death}; the model is loaded again\npinyon: 4 of 4 answered, 0 failed\n"


def test_a_line_for_which_there_is_no_room_yet_is_asked_again_later(batch, capsys, monkeypatch, one_at_a_time):
    pauses = []

    async def pause(_answering, seconds):
        pauses.append(seconds)

    monkeypatch.setattr(_Answering, "_pause", pause)
    model = MortalModel({2: OverloadedError("full", 6.5), 3: OverloadedError("full", 2)})
    assert batch(*LETTERS, model=model) == {1: "aaa", 2: "bbb", 3: "ccc", 4: "ddd"}
    assert pauses == [7, 2]
    assert batch.backend.loads == ["fake"]
    assert {ask.priority for ask in model.asked} == {Priority.BATCH}
    assert capsys.readouterr().err == "pinyon: 4 of 4 answered, 0 failed\n"


def test_ctrl_c_is_heard_while_there_is_no_room(batch, monkeypatch, one_at_a_time):
    pause = _Answering._pause

    async def interrupted(answering, seconds):
        os.kill(os.getpid(), signal.SIGINT)
        await pause(answering, seconds)

    monkeypatch.setattr(_Answering, "_pause", interrupted)
    model = MortalModel({2: OverloadedError("full", 3600)})
    assert batch(*LETTERS, model=model, code=ExitCode.INTERRUPTED) == {1: "aaa"}


def test_lines_that_lose_the_model_together_load_it_once(batch, capsys):
    model = MortalModel({1: DEAD, 2: DEAD, 3: DEAD, 4: DEAD})
    assert batch(*LETTERS, model=model) == {1: "aaa", 2: "bbb", 3: "ccc", 4: "ddd"}
    assert batch.backend.loads == ["fake", "fake"]
    assert capsys.readouterr().err.count("loaded again") == 1


class PoisonedModel(MortalModel):
    """Its process dies of these letters, and with it all that is asked meanwhile."""

    def __init__(self, *letters):
        super().__init__({})
        self.letters = letters
        self.lost = asyncio.Event()

    async def generate(self, ask):
        lost, is_poison = self.lost, ask.prompt.messages[-1].content in self.letters
        self.begun += 1
        for _ in range(20):
            await asyncio.sleep(0)
        if is_poison:
            lost.set()
            self.lost = asyncio.Event()
        if lost.is_set():
            self.asked.append(ask)
            yield DEAD.as_event()
            return
        async for event in super().generate(ask):
            yield event


def test_a_line_of_which_the_model_dies_fails_alone(batch, here, capsys):
    model = PoisonedModel("b")
    assert batch(*LETTERS, model=model, code=ExitCode.FAILED) == {1: "aaa", 3: "ccc", 4: "ddd"}
    err = capsys.readouterr().err
    assert "pinyon: 2: the model was lost with it twice: the server died\n" in err
    assert err.endswith("pinyon: 3 of 4 answered, 1 failed\n")
    assert batch.backend.loads == ["fake"] * 3


def test_where_the_model_dies_of_two_lines_in_a_row_the_batch_ends_and_the_next_one_goes_on(
    batch, here, capsys, one_at_a_time
):
    with pytest.raises(GenerationFailedError, match="the server died"):
        batch(*LETTERS, model=MortalModel({2: DEAD, 3: DEAD, 4: DEAD, 5: DEAD}))
    assert written(here) == {1: "aaa"}
    assert capsys.readouterr().err.endswith(
        "pinyon: 1 of 4 answered, 1 failed, 2 left: the same command goes on with them\n"
    )
    model = ChatModel(echo)
    assert batch(*LETTERS, model=model) == {1: "aaa", 2: "bbb", 3: "ccc", 4: "ddd"}
    assert asked_letters(model) == ["b", "c", "d"]


def test_a_model_that_cannot_be_loaded_again_is_tried_once_and_what_was_answered_meanwhile_is_kept(batch, here, capsys):
    model, gone = MortalModel({1: DEAD, 2: DEAD}), ModelNotFoundError("gone")
    with pytest.raises(ModelNotFoundError, match="gone"):
        batch(*LETTERS, model=model, before_second_load=lambda backend: backend._load_errors.append(gone))
    assert written(here) == {3: "ccc", 4: "ddd"}
    assert batch.backend.loads == ["fake", "fake"]
    assert "2 of 4 answered, 0 failed, 2 left" in capsys.readouterr().err


def test_another_model_does_not_answer_the_rest(batch, here, one_at_a_time):
    def renamed(backend):
        backend._model.name = "other"

    with pytest.raises(ServerError, match="fake, which answered so far, is not here"):
        batch(*LETTERS, model=MortalModel({2: DEAD}), before_second_load=renamed)
    assert written(here) == {1: "aaa"}


def test_ctrl_c_keeps_what_is_answered_and_the_next_run_goes_on(batch, here, capsys):
    def interrupts(request_id, tokens, generated):
        letter = echo(request_id, tokens, generated)
        if letter == ord("b"):
            if generated == 0:
                os.kill(os.getpid(), signal.SIGINT)
            return letter  # for ever
        return letter

    model = ChatModel(interrupts)
    lines = [{"prompt": letter} for letter in "abc"]

    async def slowly():
        while model.engine.busy:
            model.step()
            await asyncio.sleep(0.001)

    model._step_while_busy = slowly
    kept = batch(*lines, model=model, code=ExitCode.INTERRUPTED)
    assert 2 not in kept
    assert capsys.readouterr().err.endswith(
        f"{len(kept)} of 3 answered, 0 failed, {3 - len(kept)} left: the same command goes on with them\n"
    )
    assert batch(*lines) == {1: "aaa", 2: "bbb", 3: "ccc"}


def test_two_batches_do_not_write_one_output(batch, here, capsys):
    answers = batch({"prompt": "a"})
    with held(here / "out.jsonl", Folders.of_user().batches):
        with pytest.raises(UsageError, match=f"process {os.getpid()} writes out.jsonl: wait for its end"):
            batch({"prompt": "a"}, {"prompt": "b"})
        assert batch.backend.loads == []
    assert written(here) == answers
    assert batch({"prompt": "a"}, {"prompt": "b"}) == {1: "aaa", 2: "bbb"}


def test_a_batch_leaves_nothing_but_the_lock(here):
    batches = Folders.of_user().batches
    with held(here / "out.jsonl", batches):
        assert {path.stat().st_mode & 0o777 for path in batches.iterdir()} == {0o600}
        assert sorted(path.suffix for path in batches.iterdir()) == [".lock", ".pid"]
    assert [path.suffix for path in batches.iterdir()] == [".lock"]


@pytest.mark.parametrize("files", [("-", "out.jsonl"), ("in.jsonl", "-")])
def test_a_batch_has_no_pipes(here, files):
    with pytest.raises(UsageError, match=r"a batch needs files: - is none"):
        called(command, *files, "-m", "fake")
    assert not (here / "-").exists()


def test_without_an_input_or_a_model_no_output_is_made(batch, here, monkeypatch):
    faked(monkeypatch, ChatModel(echo))
    with pytest.raises(UsageError, match=r"none\.jsonl cannot be read"):
        called(command, "none.jsonl", "out.jsonl", "-m", "fake")
    (here / "in.jsonl").write_text('{"prompt": "a"}')
    faked(monkeypatch, ChatModel(echo))._load_errors.append(ModelNotFoundError("no such model"))
    with pytest.raises(ModelNotFoundError):
        called(command, "in.jsonl", "out.jsonl", "-m", "fake")
    assert not (here / "out.jsonl").exists()


def test_a_real_model_answers_a_batch_and_what_was_cut_off_of_it(tmp_path, tiny):
    pinyon(tmp_path, "add", tiny, "--name", "tiny", check=True)
    lines = [{"id": f"line {number}", "prompt": "x" * number, "options": {"max_tokens": 9}} for number in range(1, 13)]
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, lines)))
    arguments = ["batch", tmp_path / "in.jsonl", tmp_path / "out.jsonl"]
    first = pinyon(tmp_path, *arguments, check=True)
    assert (first.stdout, first.stderr) == (b"", b"pinyon: 12 of 12 answered, 0 failed\n")
    whole = (tmp_path / "out.jsonl").read_bytes()
    assert sorted(map(json.dumps, written(tmp_path))) == sorted(json.dumps(line["id"]) for line in lines)
    (tmp_path / "out.jsonl").write_bytes(whole[: len(whole) // 2])
    kept = (tmp_path / "out.jsonl").read_bytes().rpartition(b"\n")[0]
    assert pinyon(tmp_path, *arguments, check=True).stderr == first.stderr
    assert (tmp_path / "out.jsonl").read_bytes().startswith(kept + b"\n")
    assert len(written(tmp_path)) == 12


@pytest.mark.model
def test_a_server_that_is_killed_in_mid_batch_costs_no_line(tmp_path, tiny):
    pinyon(tmp_path, "add", tiny, "--name", "tiny", check=True)
    lines = [{"prompt": "x" * (number % 50 + 1), "options": {"max_tokens": 60}} for number in range(1, 81)]
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, lines)))
    arguments = [*PINYON, "batch", tmp_path / "in.jsonl", tmp_path / "out.jsonl", "-m", "tiny"]
    with (
        serving(tmp_path, "--model", "tiny", PINYON_THREADS="1") as server,
        subprocess.Popen(arguments, env=environment(tmp_path, PINYON_THREADS="1"), stderr=subprocess.PIPE) as batch,
    ):
        output = tmp_path / "out.jsonl"
        while not output.exists() or not output.stat().st_size:
            assert batch.poll() is None
            time.sleep(0.01)
        server.kill()
        _, told = batch.communicate(timeout=60)
    assert batch.returncode == 0, told
    assert b"the model is loaded again\npinyon: 80 of 80 answered, 0 failed\n" in told
    assert sorted(written(tmp_path)) == [*range(1, 81)]


@pytest.mark.model
def test_a_model_that_does_not_fit_is_loaded_all_the_same_where_that_is_wanted(here, tiny):
    (config := here / "home" / "config").mkdir(parents=True)
    (config / "settings.toml").write_text("threads = 1\n[headroom_mib]\nRAM = 100000000\n")
    (here / "in.jsonl").write_text(json.dumps({"prompt": "a", "options": {"max_tokens": 2}}))
    refused = pinyon(here / "home", "batch", "in.jsonl", "out.jsonl", "-m", tiny)
    assert (refused.returncode, b" 0 MiB are free for it" in refused.stderr, b"--force" in refused.stderr) == (
        4,
        True,
        True,
    )
    forced = pinyon(here / "home", "batch", "in.jsonl", "out.jsonl", "-m", tiny, "--force")
    assert (forced.returncode, b"MiB more of RAM than is free" in forced.stderr) == (0, True)
    assert list(written(here)) == [1]
