import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import pytest_asyncio

from pinyon.models.errors import TemplateRejectedError, TemplateTooExpensiveError
from pinyon.models.template_messages import RenderRequest
from pinyon.models.template_sandbox import TemplateSandbox

# One event loop and one sandbox for the file: what is tested is also that each request leaves the sandbox fit for the next.
pytestmark = pytest.mark.asyncio(loop_scope="module")

TIME_LIMIT_S = 0.5
ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
HUNGRY = "{{ 'a' * 10**10 }}"


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def sandbox():
    sandbox = TemplateSandbox(time_limit_s=TIME_LIMIT_S)
    await sandbox.start()
    yield sandbox
    await sandbox.close()


def request(source, **variables):
    return RenderRequest(source, variables)


async def require_usable(sandbox):
    assert await sandbox.render(request("{{ greeting }}!", greeting="hello")) == "hello!"


# ---- what templates expect


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{% if true %}\n  a\n  {% endif %}\nb", "  a\nb"),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("{% generation %}{% set x = 1 %}body{% endgeneration %}{{ x is defined }}", "bodyFalse"),
        ("{{ {'b': '<é>', 'a': 1} | tojson }}", '{"b": "<é>", "a": 1}'),
        ("{{ {'b': 2, 'a': [1]} | tojson(indent=1, sort_keys=true) }}", '{\n "a": [\n  1\n ],\n "b": 2\n}'),
        ("{{ {'a': 'é'} | tojson(ensure_ascii=true, separators=(',', ':')) }}", '{"a":"\\u00e9"}'),
        ("{{ strftime_now('%Y') | length }}", "4"),
        ("{% set ns = namespace(n=0) %}{% for i in [1, 2] %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}", "3"),
        ("{{ missing }}{{ missing is defined }}", "False"),
        ("{{ '\\u2022' }}{{ '\\N{BULLET}' }}", "••"),
        ("{{ '<p>a&gt;b' | striptags }}{{ 'a b' | urlencode }}{{ 'www.a.b' | urlize | length }}", "a>ba%20b7"),
        ("{{ 'a b' | wordwrap(1) }} {{ 1.5 | round | pprint }} {{ {'a': 1} | xmlattr }}", 'a\nb 2.0  a="1"'),
        ("{{ 12345 | filesizeformat }} {{ [3, 1] | sort | random in [1, 3] }}", "12.3 kB True"),
    ],
)
async def test_the_environment_of_chat_templates(sandbox, source, text):
    assert await sandbox.render(request(source)) == text


@pytest.mark.parametrize("text", ["\0", "\ue000\U0010fffd", "line\nline\r\n\u2028", "😀" * 1000, "\x7f\x1b[0m"])
async def test_text_comes_back_as_it_went(sandbox, text):
    assert await sandbox.render(request("{{ text }}", text=text)) == text


async def test_half_a_surrogate_pair_passes_the_pipe_but_is_no_output(sandbox):
    assert await sandbox.render(request("{{ text | length }}", text="a\ud800")) == "2"
    with pytest.raises(TemplateRejectedError, match="surrogates not allowed"):
        await sandbox.render(request("{{ text }}", text="a\ud800"))


async def test_a_request_sees_nothing_of_the_one_before(sandbox):
    await sandbox.render(request("{% set secret = 1 %}{{ secret }}", other="x"))
    assert await sandbox.render(request("{{ secret is defined }}{{ other is defined }}")) == "FalseFalse"


# ---- refusals


async def test_a_refusal_carries_the_templates_own_sentence(sandbox):
    with pytest.raises(TemplateRejectedError, match=r"refuses these messages: Roles must alternate!$"):
        await sandbox.render(request("{{ raise_exception('Roles must alternate!') }}"))


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("a\n{% if %}", "line 2: Expected an expression"),
        ("{{ message.content.text }}", "'message' is undefined"),
        ("{{ ''.__class__.__mro__ }}", "access to attribute '__class__' of 'str' object is unsafe"),
        ("{{ messages.append(1) }}", "append"),
        ("{{ range(10**9) }}", "Range too big"),
        ("{% include '/etc/passwd' %}", "no loader"),
        ("{{ 1 / 0 }}", "ZeroDivisionError: division by zero"),
    ],
)
async def test_a_broken_template_is_rejected_with_the_reason(sandbox, source, reason):
    with pytest.raises(TemplateRejectedError) as caught:
        await sandbox.render(request(source, messages=[]))
    assert reason in str(caught.value)
    assert "Traceback" not in str(caught.value)


async def test_a_long_reason_is_cut(sandbox):
    with pytest.raises(TemplateRejectedError) as caught:
        await sandbox.render(request("{{ raise_exception('x' * 100000) }}"))
    assert len(str(caught.value)) < 1100


# ---- limits

EXPENSIVE = {
    "nested ranges": ENDLESS,
    "a power": "{{ 9**(9**(9**9)) }}",
    "doubling": "{% set ns = namespace(s='x') %}{% for i in range(40) %}{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s }}",
    "multiplied string": HUNGRY,
    "multiplied list": "{{ [0] * 10**10 }}",
    "center": "{{ 'x' | center(10**10) }}",
    "percent format": "{{ '%9999999999d' % 1 }}",
    "format filter": "{{ '%09999999999d' | format(1) }}",
    "str.format": "{{ '{:9999999999}'.format(1) }}",
    "ljust": "{{ 'x'.ljust(10**10) }}",
    "indent": "{{ 'x\nx' | indent(10**10) }}",
    "recursive macro": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "nested parentheses": "{{ " + "(" * 2000 + "1" + ")" * 2000 + " }}",
    "nested lists": "{{ " + "[" * 2000 + "]" * 2000 + " }}",
    "nested ifs": "{% if true %}" * 300 + "{% endif %}" * 300,
    "huge join": "{{ range(99999) | map('string') | join('x' * 9999) }}",
    "long range": "{% for i in range(10**9) %}{% endfor %}",
    "lorem ipsum": "{{ lipsum(n=10**9, html=false) }}",
    "replace": "{{ ('a' * 10**6).replace('a', 'b' * 10**6) }}",
    "batch": "{{ [1] | batch(10**10, 'x') | list }}",
    "growing list": "{% set ns = namespace(l=[1]) %}{% for i in range(64) %}{% set ns.l = ns.l + ns.l %}{% endfor %}",
    "long output": "{{ 'x' * 5000000 }}",
}


@pytest.mark.parametrize("source", EXPENSIVE.values(), ids=EXPENSIVE.keys())
async def test_an_expensive_template_fails_alone(sandbox, source):
    with pytest.raises((TemplateTooExpensiveError, TemplateRejectedError)):
        await sandbox.render(request(source))
    await require_usable(sandbox)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (ENDLESS, r"took more than 0\.5 s"),
        (HUNGRY, "more than 256 MiB of memory"),
        (EXPENSIVE["recursive macro"], "nested too deeply"),
        (EXPENSIVE["long output"], "made 5,000,000 bytes of text, the limit is 4,194,304"),
        ("x" * (256 * 1024 + 1), "262,145 bytes long, the limit is 262,144"),
    ],
)
async def test_the_limit_that_was_passed_is_named(sandbox, source, reason):
    with pytest.raises(TemplateTooExpensiveError, match=reason):
        await sandbox.render(request(source))


async def test_a_request_that_is_too_long_is_not_sent(sandbox):
    with pytest.raises(TemplateTooExpensiveError, match=r"limit is 33,554,432: shorten the conversation"):
        await sandbox.render(request("", text="x" * (32 << 20)))
    await require_usable(sandbox)


async def test_output_up_to_the_limit_passes_whatever_its_escapes():
    sandbox = TemplateSandbox()  # six bytes a character in the pipe take their time
    text = await sandbox.render(request("{{ '\\0' * 4194304 }}"))
    await sandbox.close()
    assert len(text) == 4 << 20


async def test_concurrent_renders_get_their_own_replies(sandbox):
    replies = await asyncio.gather(*(sandbox.render(request("{{ n }}", n=n)) for n in range(50)))
    assert replies == [str(n) for n in range(50)]


async def test_an_expensive_request_does_not_harm_those_that_wait_behind_it(sandbox):
    sources = (ENDLESS, "a", HUNGRY, "b")
    replies = await asyncio.gather(*(sandbox.render(request(source)) for source in sources), return_exceptions=True)
    assert [type(reply) for reply in replies] == [TemplateTooExpensiveError, str, TemplateTooExpensiveError, str]
    assert replies[1::2] == ["a", "b"]


# ---- life and death of the child


def child_pid(sandbox):
    return sandbox._child.result()._process.pid


@pytest.mark.parametrize("delay_s", [0, 0.001, 0.01, 0.1])
async def test_a_cancelled_request_does_not_answer_the_next(sandbox, delay_s):
    await require_usable(sandbox)
    task = asyncio.create_task(sandbox.render(request("wrong" + ENDLESS)))
    await asyncio.sleep(delay_s)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await require_usable(sandbox)


async def test_a_cheap_request_keeps_the_child(sandbox):
    await require_usable(sandbox)
    pid = child_pid(sandbox)
    with pytest.raises(TemplateRejectedError):
        await sandbox.render(request("{{ raise_exception('no') }}"))
    await require_usable(sandbox)
    assert child_pid(sandbox) == pid


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
async def test_a_child_that_died_while_idle_is_replaced(sandbox, caplog):
    caplog.set_level(logging.CRITICAL, "asyncio")
    await require_usable(sandbox)
    child = sandbox._child.result()
    os.kill(child._process.pid, signal.SIGKILL)
    await child._process.wait()
    await require_usable(sandbox)


async def test_close_ends_the_child_and_a_later_render_starts_another():
    sandbox = TemplateSandbox()
    await sandbox.close()
    await require_usable(sandbox)
    child = sandbox._child.result()
    await sandbox.close()
    assert not child.alive
    await require_usable(sandbox)
    await sandbox.close()


def start_by_hand(time_limit_s=60.0, **options):
    command = [sys.executable, "-P", "-m", "pinyon.models.template_child", str(time_limit_s), str(256 << 20)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **options)
    assert process.stdout.readline() == b"ready\n"
    return process


async def test_the_child_ends_with_its_input():
    with start_by_hand() as process:
        process.stdin.close()
        assert process.wait(10) == 0


@pytest.mark.skipif(sys.platform == "win32", reason="alarms")
async def test_the_child_ends_itself_when_the_parent_died_during_a_render():
    with start_by_hand(time_limit_s=0.2) as process:
        process.stdin.write(json.dumps({"source": ENDLESS, "variables": {}}).encode() + b"\n")
        process.stdin.close()
        assert process.wait(10) == -signal.SIGALRM


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
async def test_the_child_is_confined(sandbox, monkeypatch):
    monkeypatch.setenv("PINYON_TEST_SECRET", "sesame")
    fresh = TemplateSandbox()
    await fresh.start()
    proc = Path("/proc") / str(child_pid(fresh))
    limits = {line[:25].strip(): line[26:46].strip() for line in (proc / "limits").read_text().splitlines()}
    environment = (proc / "environ").read_text()
    stderr = (proc / "fd" / "2").readlink()
    await fresh.close()
    assert (limits["Max open files"], limits["Max processes"], limits["Max core file size"]) == ("3", "0", "0")
    assert int(limits["Max address space"]) < 700 << 20
    assert "sesame" not in environment
    assert stderr == Path(os.devnull)


# ---- escapes
# MARK is a path that a payload tries to create; what a payload could print of the interpreter is in TELLS.

COMMAND = "'touch MARK; echo pwned'"
ESCAPES = [
    "{{ ''.__class__ }}",
    "{{ ''.__class__.__mro__ }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ ''.__class__.__base__.__subclasses__()[40]('/etc/passwd').read() }}",
    "{{ [].__class__.__base__.__subclasses__() }}",
    "{{ {}.__class__.__bases__[0].__subclasses__() }}",
    "{{ ().__class__.__base__ }}",
    "{{ (1).__class__ }}",
    "{{ true.__class__.__mro__ }}",
    "{{ none.__class__ }}",
    "{{ ''['__class__'] }}",
    "{{ ''['__cla' + 'ss__']['__mro__'] }}",
    "{{ ''['\\x5f\\x5fclass\\x5f\\x5f'] }}",
    "{{ ''['\\u005f\\u005fclass\\u005f\\u005f'] }}",
    "{{ ''|attr('__class__') }}",
    "{{ ''|attr('\\x5f\\x5fclass\\x5f\\x5f')|attr('\\x5f\\x5fmro\\x5f\\x5f') }}",
    "{{ ''|attr(['__cla','ss__']|join) }}",
    "{{ ''|attr('%sclass%s'|format('__','__')) }}",
    "{{ ''|attr('__ssalc__'|reverse) }}",
    "{{ ''|attr('__CLASS__'|lower) }}",
    "{{ ''|attr('_'*2 ~ 'class' ~ '_'*2) }}",
    "{{ ''|attr(name) }}",
    "{{ [''] | map(attribute='__class__') | list }}",
    "{{ [''] | map(attribute='__class__.__mro__') | list }}",
    "{{ [''] | map('attr', '__class__') | list }}",
    "{{ [''] | map('attr', '__class__') | map('attr', '__mro__') | first }}",
    "{{ [''] | selectattr('__class__') | list }}",
    "{{ [''] | groupby('__class__') }}",
    "{{ [''] | sum(attribute='__class__', start=[]) }}",
    "{{ ['', 'a'] | sort(attribute='__class__.__name__') }}",
    "{{ ['', 'a'] | unique(attribute='__class__') | list }}",
    "{{ ['', 'a'] | max(attribute='__class__') }}",
    "{{ '{0.__class__}'.format('') }}",
    "{{ '{0.__class__.__mro__}'.format(1) }}",
    "{{ '{x.__class__}'.format(x=1) }}",
    "{{ '{0.__init__.__globals__}'.format(cycler) }}",
    "{{ '{x.__class__}'.format_map({'x': 1}) }}",
    "{{ '{0.__globals__[os]}'.format(lipsum) }}",
    "{% set f = '{0.__class__}'.format %}{{ f('') }}",
    "{{ ('{0.__class__}' | attr('format'))('') }}",
    "{{ ''.join.__self__.__class__ }}",
    "{{ ['{0.__class__}'] | map('attr', 'format') | first }}",
    "{{ ('{0.__class__}'|string|safe).format('') }}",
    "{{ ('{0.__class__}'|escape).format('') }}",
    "{{ '%(a)s' % {'a': ''.__class__} }}",
    "{{ cycler.__init__.__globals__ }}",
    "{{ cycler.__init__.__globals__.os.popen(COMMAND).read() }}",
    "{{ cycler('a').__init__.__globals__.os.system(COMMAND) }}",
    "{{ cycler('a').next.__globals__ }}",
    "{{ joiner.__init__.__globals__.os.popen(COMMAND).read() }}",
    "{{ joiner(',').__call__.__globals__ }}",
    "{{ namespace.__init__.__globals__.os.popen(COMMAND).read() }}",
    "{{ namespace(a=1)._Namespace__attrs }}",
    "{% set ns = namespace() %}{% set ns.__class__ = 1 %}{{ ns.__class__ }}",
    "{% set ns = namespace(__class__='x') %}{{ ns.__init__.__globals__ }}",
    "{{ lipsum.__globals__ }}",
    "{{ lipsum.__globals__['os'].popen(COMMAND).read() }}",
    "{{ lipsum|attr('__globals__')|attr('get')('os')|attr('popen')(COMMAND)|attr('read')() }}",
    "{{ lipsum.__code__.co_consts }}",
    "{{ lipsum.__builtins__ }}",
    "{{ lipsum.func_globals }}",
    "{{ dict.__init__ }}",
    "{{ dict.mro() }}",
    "{{ range.__class__ }}",
    "{{ raise_exception.__globals__['os'].system(COMMAND) }}",
    "{{ strftime_now.__globals__['os'].system(COMMAND) }}",
    "{{ strftime_now.__wrapped__ }}",
    "{{ self._TemplateReference__context }}",
    "{{ self.__init__.__globals__ }}",
    "{{ self._TemplateReference__context.cycler.__init__.__globals__.os }}",
    "{{ self.__dict__ }}",
    "{{ undefined_name.__class__ }}",
    "{{ undefined_name.__init__.__globals__ }}",
    "{{ undefined_name._fail_with_undefined_error.__globals__ }}",
    "{{ request.application.__globals__.__builtins__.open('MARK', 'w') }}",
    "{{ config.__class__.__init__.__globals__['os'].popen(COMMAND).read() }}",
    "{{ url_for.__globals__ }}{{ get_flashed_messages.__globals__ }}{{ g.pop.__globals__ }}",
    "{{ __builtins__ }}{{ __import__('os').system(COMMAND) }}",
    "{{ open('MARK', 'w') }}",
    "{{ eval('1') }}",
    "{{ (x for x in [1]).gi_frame }}",
    "{{ ([1] | map('string')).gi_frame.f_globals }}",
    "{{ ([1] | map('string')).gi_code }}",
    "{{ ([1] | select).gi_frame.f_back.f_back.f_globals }}",
    "{% macro m() %}{% endmacro %}{{ m.__init__.__globals__ }}",
    "{% macro m() %}{% endmacro %}{{ m._func.__globals__ }}{{ m._environment }}",
    "{% macro m() %}{{ caller.__class__ }}{% endmacro %}{% call m() %}{% endcall %}",
    "{% macro m() %}{{ varargs.__class__ }}{{ kwargs.__class__ }}{% endmacro %}{{ m(1, a=2) }}",
    "{% for x in [1] %}{{ loop.__init__.__globals__ }}{% endfor %}",
    "{% for x in [1] %}{{ loop._iterator.__class__ }}{% endfor %}",
    "{% for x in [1] recursive %}{{ loop.__class__.__call__.__globals__ }}{% endfor %}",
    "{% block b %}{{ self.b.__func__.__globals__ }}{{ super.__class__ }}{% endblock %}",
    "{% import 'os' as os %}{{ os.system(COMMAND) }}",
    "{% from 'os' import system %}{{ system(COMMAND) }}",
    "{% include 'MARK' %}",
    "{% extends 'MARK' %}",
    "{{ 'a'.encode('utf-8').__class__ }}",
    "{{ 'a'.encode('idna') }}",
    "{{ 'a'.encode('zip') }}",
    "{{ 'a'.encode().decode('../../MARK') }}",
    "{{ 'a'.encode().fromhex.__self__ }}",
    "{{ 'a'.translate(lipsum.__globals__) }}",
    "{{ messages.__init_subclass__ }}{{ messages.append.__self__.__class__ }}",
    "{{ messages.append(1) }}{{ messages }}",
    "{{ messages[0].update({'role': 'system'}) }}",
    "{{ messages[0].__setitem__('a', 1) }}",
    "{{ [].sort.__self__.append(1) }}",
    "{% set x = messages.pop %}{{ x() }}",
    "{{ messages | tojson(default=lipsum.__globals__) }}",
    "{{ lipsum | tojson }}",
    "{{ lipsum | pprint }}",
    "{{ lipsum | string | attr('__class__') }}",
    "{{ 1 | attr('real') | attr('__class__') }}",
    "{{ 1.5.as_integer_ratio.__self__.__class__ }}",
    "{{ (1).to_bytes.__class__ }}",
    "{% autoescape true %}{{ ''.__class__ }}{% endautoescape %}",
    "{% filter attr('__class__') %}x{% endfilter %}",
    "{% set x %}y{% endset %}{{ x.__html__.__globals__ }}",
    "{% with a = ''.__class__ %}{{ a }}{% endwith %}",
    "{% debug %}",
]
TELLS = (
    "pwned",
    "<class",
    "<module",
    "<built-in",
    "<frame",
    "<code",
    "<slot",
    "<method-wrapper",
    "root:",
    "environ",
    "mappingproxy",
)
AUDITED_CHILD = """
import json, sys
from pinyon.models import template_child

WATCHED = ("open", "os.", "subprocess.", "socket.", "shutil.", "ctypes.", "pty.")
events = []

def hook(event, arguments):
    if event.startswith(WATCHED):
        events.append(event)

sources = json.load(sys.stdin)
template_child.confine(256 << 20)
sys.addaudithook(hook)
outcomes = []
for source in sources:
    line = json.dumps({"source": source, "variables": {"messages": [{"role": "user"}], "name": "__class__"}})
    reply = template_child.answer(line.encode())
    outcomes.append((reply.kind, reply.text, tuple(events)))
    events.clear()
try:
    open("/dev/null")
except OSError:
    pass
print(json.dumps({"outcomes": outcomes, "hook works": events == ["open"]}))
"""


async def test_no_escape_reaches_the_interpreter(tmp_path):
    mark = tmp_path / "mark"
    sources = [source.replace("COMMAND", COMMAND).replace("MARK", str(mark)) for source in ESCAPES]
    assert len(set(sources)) >= 60
    command = [sys.executable, "-P", "-c", AUDITED_CHILD]
    done = await asyncio.to_thread(
        subprocess.run, command, input=json.dumps(sources), capture_output=True, text=True, check=True, timeout=60
    )
    report = json.loads(done.stdout)
    assert report["hook works"]
    for source, (kind, text, events) in zip(sources, report["outcomes"], strict=True):
        assert events == [], source
        assert kind != "rendered" or not any(tell in text for tell in TELLS), (source, text)
    assert not mark.exists()


async def test_escapes_leave_the_child_usable(sandbox):
    for source in ESCAPES[::10]:
        try:
            await sandbox.render(request(source))
        except TemplateRejectedError:
            continue
    await require_usable(sandbox)
