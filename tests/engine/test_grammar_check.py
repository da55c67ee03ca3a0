import asyncio
import json
import sys

import psutil
import pytest
from grammar_walks import accepts

from pinyon.engine.errors import EngineStartError, InvalidRequestError
from pinyon.engine.grammar import gbnf, json_object, json_schema, lark, regex
from pinyon.engine.grammar_check import GrammarChecker
from pinyon.engine.request import Grammar

READ = "import sys; print('ready', flush=True); sys.stdin.read()\n"


def planted(script: str, **limits: float) -> GrammarChecker:
    """A checker whose child runs this script instead."""
    return GrammarChecker(command=(sys.executable, "-c", script), **limits)


def children() -> list[psutil.Process]:
    return psutil.Process().children()


async def test_a_good_grammar_comes_back_as_it_is() -> None:
    checker = GrammarChecker()
    for grammar in (json_object(), regex("a+"), lark('start: "a"')):
        assert await checker.check(grammar) == grammar
    assert children() == []


async def test_gbnf_comes_back_translated() -> None:
    source = r"""
        root ::= (name "=" value "\n")+   # pairs
        name ::= [a-z\u00e0-\u00ff]+
        value ::= "\"" [^"\\]* "\x22" | "\u00e9\\u0041" | num{1,2}
        num ::= [0-9]
    """
    grammar = await GrammarChecker().check(gbnf(source))
    assert not grammar.is_gbnf
    for text in ('a="x"\n', 'à="é"\nb=12\n', "a=é\\u0041\n"):
        assert accepts(grammar, text), text
    for text in ("a=123\n", 'A="x"\n', 'a="x"', "a=éA\n"):
        assert not accepts(grammar, text), text


BAD = [
    (regex("(?<=x)*"), "look-around"),
    (lark('start: "a" <|im_end|>'), "names tokens"),
    (lark("start: <[0-100]>"), "names tokens"),
    (lark("start: missing"), "missing"),
    (lark('start: "a"{0,9223372036854775808}'), "too large"),
    (gbnf("root ::= other"), "'other' not found"),
    (gbnf('other ::= "a"'), "No 'root' rule"),
    (gbnf('root ::= "a'), "Unexpected end"),
    (gbnf("root ::= root"), "no text matches"),
    (gbnf('root ::= a-b\na-b ::= "x"\na_b ::= "y"'), "already exists"),
    (json_schema({"type": "string", "pattern": "("}), "pattern"),
    (json_schema({"oneOf": [{"minimum": 1}, {"maximum": 5}]}), "oneOf"),
    (json_schema({"type": "object", "properties": {f"p{i}": True for i in range(900)}}), "about 500 optional"),
    (
        json_schema(
            {"allOf": [{"anyOf": [{"required": [f"p{i}{j}"]} for j in range(8)]} for i in range(8)], "type": "object"}
        ),
        "too many combinations",
    ),
]


@pytest.mark.parametrize(("grammar", "message"), BAD, ids=[message for _, message in BAD])
async def test_a_bad_grammar_is_refused_with_a_reason_in_one_line(grammar: Grammar, message: str) -> None:
    with pytest.raises(InvalidRequestError) as refusal:
        await GrammarChecker().check(grammar)
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 600


@pytest.mark.parametrize(
    "grammar",
    [
        gbnf("root ::= r0\n" + "".join(f"r{i} ::= r{i + 1} root\n" for i in range(3000)) + 'r3000 ::= "a"\n'),
        lark("start: R0\n" + "".join(f"R{i}: R{i + 1}{{100}}\n" for i in range(20)) + 'R20: "a"\n'),
        json_schema({"allOf": [{"pattern": f".*{chr(97 + i)}.*{chr(98 + i)}.*"} for i in range(20)]}),
        json_schema({"type": "integer", "multipleOf": 10**9 + 7}),
    ],
    ids=["a long chain of rules", "nested repetition", "a product of patterns", "a large prime"],
)
async def test_a_grammar_that_explodes_is_refused(grammar: Grammar) -> None:
    with pytest.raises(InvalidRequestError):
        await GrammarChecker(time_limit_s=0.3).check(grammar)
    assert children() == []


@pytest.mark.parametrize(
    "source", ['root ::= "a"{0,1000000000}', 'root ::= ("a"? "b"?){0,1000000}', "root ::= b\nb ::= b? [a]"]
)
async def test_odd_repetitions_work(source: str) -> None:
    assert accepts(await GrammarChecker().check(gbnf(source)), "aaa")


async def test_a_child_that_hangs_is_killed() -> None:
    checker = planted(READ + "while True: pass", time_limit_s=0.05)
    with pytest.raises(InvalidRequestError, match=r"more than 0\.05 s: simplify it"):
        await checker.check(json_object())
    assert children() == []


@pytest.mark.skipif(sys.platform != "linux", reason="the memory limit needs Linux")
async def test_a_child_that_fills_memory_is_refused_more() -> None:
    script = (
        "import sys\nfrom pinyon.engine import grammar_child\ngrammar_child.confine(int(sys.argv[1]))\n"
        + READ
        + "bytearray(512 << 20); sys.exit(0)"
    )
    with pytest.raises(InvalidRequestError, match="more than 64 MiB of memory"):
        await planted(script, memory_limit_bytes=64 << 20).check(json_object())


@pytest.mark.parametrize("death", ["os.abort()", "os.kill(os.getpid(), 11)", "sys.exit(1)"])
async def test_a_child_that_dies_takes_the_grammar_with_it(death: str) -> None:
    with pytest.raises(InvalidRequestError, match="too large or nested too deeply: simplify it"):
        await planted(READ + f"import os, resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); {death}").check(
            json_object()
        )


async def test_a_child_that_cannot_start_is_not_the_grammars_fault() -> None:
    with pytest.raises(EngineStartError, match="not ready"):
        await planted("print('hello')").check(json_object())
    with pytest.raises(EngineStartError, match="cannot start the process"):
        await GrammarChecker(command=("/no/such/program",)).check(json_object())
    assert children() == []


async def test_a_cancelled_check_leaves_no_child() -> None:
    checker = planted(READ + "while True: pass")
    check = asyncio.create_task(checker.check(json_object()))
    while not children():
        await asyncio.sleep(0.01)
    check.cancel()
    with pytest.raises(asyncio.CancelledError):
        await check
    assert children() == []


async def test_two_children_run_at_once() -> None:
    checker = planted(READ + "while True: pass")
    checks = [asyncio.create_task(checker.check(regex(f"a{number}"))) for number in range(4)]
    while len(children()) < 2:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    assert len(children()) == 2
    for check in checks:
        check.cancel()
    await asyncio.gather(*checks, return_exceptions=True)
    assert children() == []


async def test_good_grammars_are_remembered_and_bad_ones_are_not(tmp_path) -> None:
    runs = tmp_path / "runs"
    count = f"print(file=open({str(runs)!r}, 'a'))\n"
    good = planted(count + READ + "print('source', end='')")
    assert await good.check(json_object()) == await good.check(json_object()) == Grammar("source")
    assert await good.check(Grammar(json_object().source, is_gbnf=True)) == Grammar("source")
    assert len(runs.read_text()) == 2
    bad = planted(count + READ + "print('reason', end=''); sys.exit(3)")
    for _ in range(2):
        with pytest.raises(InvalidRequestError, match="reason"):
            await bad.check(json_object())
    assert len(runs.read_text()) == 4


async def test_the_oldest_of_many_grammars_is_forgotten(tmp_path) -> None:
    runs = tmp_path / "runs"
    checker = planted(f"print(file=open({str(runs)!r}, 'a'))\n" + READ + "print('source', end='')")
    checker._good.update({bytes([number]): Grammar("old") for number in range(64)})
    await checker.check(json_object())
    assert len(checker._good) == 64
    assert bytes([0]) not in checker._good


async def test_a_child_sees_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    checker = planted(READ + "import json, os; print(json.dumps(dict(os.environ)), end='')")
    seen = json.loads((await checker.check(json_object())).source)
    assert "HF_TOKEN" not in seen
    assert "PATH" in seen


def test_checking_needs_no_native_code_in_the_service() -> None:
    import subprocess

    script = "import sys, pinyon.engine.grammar_check; sys.exit(any('llguidance' in name for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
