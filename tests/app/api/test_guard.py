"""What the guard lets through and what it refuses, as a plain ASGI callable."""

import asyncio
import json
from dataclasses import dataclass

import httpx
import pytest
from fastapi import APIRouter, FastAPI
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from pinyon.app import limits
from pinyon.app.api.guard import Guard, GuardRules, caller_of, shown
from pinyon.app.errors import UsageError

TOKEN = "a-token-of-some-length"
PAGE = "https://app.test"
LOCAL = (b"host", b"127.0.0.1:8642")
OPEN = GuardRules.for_bind("127.0.0.1")
PAGES = GuardRules.for_bind("127.0.0.1", allow_origins=[PAGE])
CLOSED = GuardRules.for_bind("127.0.0.1", allow_origins=[PAGE], tokens=[TOKEN])

BAD_HOSTS = """evil.test 127.0.0.1.evil.test localhost.evil.test evil.test:8642 0.0.0.0 0.0.0.0:8642 [::] [::ffff:127.0.0.1]
192.168.1.5 192.168.1.5:8642 localhost. localhost.:8642 user@localhost localhost@evil.test 127.1 2130706433 0x7f.1 0177.0.0.1
127.0.0.1:x 127.0.0.1: localhost:80:80 localhost:-1 localhost:+80 localhost:123456 [::1 ::1 [::1]x [::1]: [0:0:0:0:0:0:0:1]
localhost/ localhost,evil.test localhost\\x00 *.localhost sub.localhost http://localhost""".split()


@dataclass
class Answer:
    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes

    def values(self, name):
        return [value for key, value in self.headers if key == name.encode()]

    @property
    def error(self):
        assert self.values("content-type") == [b"application/json"]
        assert self.values("content-length") == [str(len(self.body)).encode()]
        document = json.loads(self.body)
        assert list(document) == ["error"]
        assert list(document["error"]) == ["message", "type", "param", "code"]
        assert document["error"]["param"] is None
        return document["error"]


async def echo(scope, receive, send):
    """Answer with what arrived, as a stream of two pieces."""
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message["body"], message["more_body"]
    headers = [(b"cache-control", b"public"), (b"Access-Control-Allow-Origin", b"*"), (b"x-app", b"1")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def ask(rules, *headers, method="GET", path="/v1/models", query=b"", body=(b"",), app=echo, host=True):
    """One request through a guard. `headers` are pairs, or lines like 'origin: https://evil.test'."""
    pairs = [pair if isinstance(pair, tuple) else tuple(pair.encode("latin-1").split(b": ", 1)) for pair in headers]
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": query,
        "headers": [LOCAL, *pairs] if host else pairs,
    }
    pieces = list(body)
    sent = []

    async def receive():
        if not pieces:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}

    async def send(message):
        sent.append(message)

    await Guard(app, rules)(scope, receive, send)
    if not sent:
        return None
    return Answer(sent[0]["status"], sent[0]["headers"], b"".join(message["body"] for message in sent[1:]))


def answer_ok():
    return "ok"


def application():
    app = FastAPI()
    router = APIRouter()
    router.add_api_route("/v1/models", answer_ok, methods=["GET"])
    router.add_api_route("/v1/chat/completions", answer_ok, methods=["POST"])
    router.add_api_route("/models/{name:path}", lambda name: name, methods=["DELETE"])
    app.include_router(router)
    app.add_api_route("/health", answer_ok, methods=["GET"])
    app.mount("/mounted", echo)
    return app


async def test_a_request_passes_whole_and_its_answer_is_streamed_through():
    answer = await ask(OPEN, "content-type: text/plain", method="POST", body=(b"a", b"b", b"c"))
    assert (answer.status, answer.body) == (200, b"abc")
    assert answer.headers == [
        (b"x-app", b"1"),
        (b"cache-control", b"no-store"),
        (b"x-content-type-options", b"nosniff"),
    ]


async def test_the_pieces_of_an_answer_are_handed_on_untouched():
    pieces = [{"type": "http.response.body", "body": b"x", "more_body": True} for _ in range(3)]
    start = {"type": "http.response.start", "status": 200, "headers": []}
    sent = []

    async def streamed(scope, receive, send):
        for message in (start, *pieces):
            await send(message)

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": [LOCAL]}
    await Guard(streamed, OPEN)(scope, lambda: asyncio.sleep(0, {"type": "http.request"}), send)
    assert all(got is given for got, given in zip(sent[1:], pieces, strict=True))


async def test_after_the_body_the_application_sees_that_the_peer_left():
    seen = []

    async def waiting(scope, receive, send):
        seen.extend([await receive(), await receive()])

    await ask(OPEN, body=(b"x", b"y"), app=waiting)
    assert seen == [{"type": "http.request", "body": b"xy", "more_body": False}, {"type": "http.disconnect"}]


async def test_a_peer_that_leaves_within_its_body_never_reaches_a_route():
    async def gone():
        return {"type": "http.disconnect"}

    scope = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": [LOCAL]}
    await Guard(pytest.fail, OPEN)(scope, gone, pytest.fail)


async def test_lifespan_passes_and_websockets_are_refused():
    seen = []

    async def app(scope, receive, send):
        seen.append(scope["type"])

    async def send(message):
        seen.append(message)

    await Guard(app, OPEN)({"type": "lifespan"}, None, send)
    await Guard(app, OPEN)({"type": "websocket", "path": "/", "headers": [LOCAL]}, None, send)
    assert seen == ["lifespan", {"type": "websocket.close", "code": 1008}]


# Host


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LOCALHOST:1", "localhost:65535", "[::1]", "[::1]:8642"])
async def test_loopback_names_are_let_in(host):
    assert (await ask(OPEN, f"host: {host}", host=False)).status == 200


@pytest.mark.parametrize("host", [*BAD_HOSTS, "", " ", ":8642", "localhost evil.test", "localhost\t", "\xfflocalhost"])
async def test_any_other_host_is_refused_before_routing(host):
    answer = await ask(OPEN, (b"host", host.encode("latin-1")), host=False, app=pytest.fail)
    assert answer.status == 403
    assert answer.error["code"] == "host_not_allowed"
    assert "--allow-host" in answer.error["message"]


@pytest.mark.parametrize("hosts", [[], ["localhost", "localhost"], ["localhost", "evil.test"]])
async def test_a_request_has_exactly_one_host(hosts):
    answer = await ask(OPEN, *(f"host: {host}" for host in hosts), host=False, app=pytest.fail)
    assert (answer.status, answer.error["code"]) == (400, "invalid_host")


async def test_the_refusal_names_the_flag_with_the_host():
    answer = await ask(OPEN, "host: Evil.test:8642", host=False)
    assert answer.error["message"].endswith("start it with --allow-host evil.test")


async def test_allowed_names_are_let_in_and_only_they():
    rules = GuardRules.for_bind("192.168.1.5", allow_hosts=["Box.test", "2001:DB8::7", "my_container"])
    for host in ("box.test:80", "192.168.1.5", "[2001:db8::7]", "my_container", "localhost"):
        assert (await ask(rules, f"host: {host}", host=False)).status == 200
    for host in ("a.box.test", "192.168.1.6", "2001:db8::7"):
        assert (await ask(rules, f"host: {host}", host=False)).status == 403


@given(
    st.one_of(
        st.binary(max_size=40),
        st.from_regex(rb"(localhost|127\.0\.0\.1|\[::1\])[:.@\[\]a-z0-9]{0,6}", fullmatch=True),
        st.from_regex(rb"[a-z.@\[:]{0,6}(localhost|127\.0\.0\.1|\[::1\])(:[0-9]{1,5})?", fullmatch=True),
    )
)
def test_only_an_exact_name_with_or_without_a_port_passes(host):
    name, colon, port = host.rpartition(b":") if not host.endswith(b"]") and b":" in host else (host, b"", b"")
    legal = name.lower() in {b"127.0.0.1", b"localhost", b"[::1]"}
    legal = legal and (not colon or (port.isdigit() and len(port) <= 5))
    answer = asyncio.run(ask(OPEN, (b"host", host), host=False))
    assert (answer.status == 200) == legal


async def test_no_route_can_be_reached_past_the_guard():
    app = application()
    paths = [(path, method) for path, methods in app.openapi()["paths"].items() for method in methods]
    assert len(paths) == 4
    paths += [("/docs", "get"), ("/openapi.json", "get"), ("/mounted/x", "post"), ("/", "get"), ("//health", "get")]
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(Guard(app, OPEN)), base_url="http://localhost"
    ) as client:
        for path, method in paths:
            assert (await client.request(method, path)).status_code in {200, 404, 422}, path
            for host in ("evil.test", "127.0.0.1.evil.test", "0.0.0.0", "192.168.1.5"):
                answer = await client.request(method, path, headers={"host": host})
                assert answer.json()["error"]["code"] == "host_not_allowed", path


async def test_a_planted_route_in_front_of_the_guard_is_found():
    app = application()
    guarded = Guard(app, OPEN)

    async def leaky(scope, receive, send):
        await (app if scope["path"] == "/health" else guarded)(scope, receive, send)

    async with httpx.AsyncClient(transport=httpx.ASGITransport(leaky), base_url="http://evil.test") as client:
        assert [(await client.get(path)).status_code for path in ("/health", "/v1/models")] == [200, 403]


# Origins and sites


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "OPTIONS"])
@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.test",
        "null",
        "file://",
        "chrome-extension://x",
        "https://app.test:444",
        "https://app.test/",
        "",
        "http://127.0.0.1:8642",
    ],
)
async def test_an_origin_that_is_not_listed_is_refused(method, origin):
    headers = (f"origin: {origin}", "content-type: application/json", "access-control-request-method: POST")
    for rules in (OPEN, PAGES, CLOSED):
        answer = await ask(rules, *headers, method=method, app=pytest.fail)
        assert (answer.status, answer.error["code"]) == (403, "origin_not_allowed")
        can_be_allowed = origin not in {"null", "file://", "https://app.test/", ""}
        assert ("--allow-origin" in answer.error["message"]) == can_be_allowed
        assert [name for name, _ in answer.headers if name.startswith(b"access-control-") or name == b"vary"] == []


async def test_two_origins_are_refused_even_where_both_are_listed():
    assert (await ask(PAGES, f"origin: {PAGE}", f"origin: {PAGE}")).status == 403


@pytest.mark.parametrize("origin", [PAGE, "chrome-extension://abc", "http://localhost:3000"])
async def test_a_listed_origin_is_answered_with_its_name_and_never_a_star(origin):
    rules = GuardRules.for_bind("127.0.0.1", allow_origins=[origin])
    answer = await ask(rules, f"origin: {origin}", "sec-fetch-site: cross-site")
    assert (answer.status, answer.values("vary")) == (200, [b"Origin"])
    cors = [pair for pair in answer.headers if pair[0].lower().startswith(b"access-control-")]
    assert cors == [(b"access-control-allow-origin", origin.encode())]


@pytest.mark.parametrize(
    ("headers", "status"), [(["content-type: text/plain"], 415), ([], 415), (["content-length: x"], 400)]
)
async def test_refusals_too_can_be_read_by_a_listed_origin(headers, status):
    json_type = ["content-type: application/json"] if status == 400 else []
    answer = await ask(PAGES, f"origin: {PAGE}", *headers, *json_type, method="POST")
    assert answer.status == status
    assert (answer.values("access-control-allow-origin"), answer.values("vary")) == ([PAGE.encode()], [b"Origin"])


async def test_a_preflight_is_answered_without_the_token_and_without_the_application():
    asked = "Authorization, content-type,x-evil, X-Stainless-Retry-Count, openai-organization,x-stainless-\x01, cookie"
    headers = (f"origin: {PAGE}", "access-control-request-method: POST", f"access-control-request-headers: {asked}")
    private = "access-control-request-private-network: true"
    answer = await ask(CLOSED, *headers, private, method="OPTIONS", app=pytest.fail)
    assert (answer.status, answer.body) == (204, b"")
    assert answer.headers == [
        (b"access-control-allow-methods", b"GET, POST, PUT, PATCH, DELETE"),
        (b"access-control-allow-headers", b"authorization, content-type, x-stainless-retry-count, openai-organization"),
        (b"access-control-max-age", b"600"),
        (b"cache-control", b"no-store"),
        (b"x-content-type-options", b"nosniff"),
        (b"access-control-allow-origin", PAGE.encode()),
        (b"vary", b"Origin"),
    ]


async def test_options_that_is_no_preflight_needs_the_token():
    assert (await ask(CLOSED, f"origin: {PAGE}", method="OPTIONS")).status == 401
    assert (await ask(CLOSED, "access-control-request-method: POST", method="OPTIONS")).status == 401


TAB = ("sec-fetch-mode: navigate", "sec-fetch-dest: document")


@pytest.mark.parametrize(
    ("method", "headers", "status"),
    [
        ("GET", ["sec-fetch-site: none", *TAB], 200),
        ("GET", ["sec-fetch-site: same-origin", "sec-fetch-mode: cors"], 200),
        ("GET", ["sec-fetch-site: cross-site", *TAB], 200),
        ("HEAD", ["sec-fetch-site: same-site", *TAB], 200),
        ("GET", ["sec-fetch-site: cross-site", "sec-fetch-mode: no-cors", "sec-fetch-dest: image"], 403),
        ("GET", ["sec-fetch-site: same-site", "sec-fetch-mode: no-cors", "sec-fetch-dest: script"], 403),
        ("GET", ["sec-fetch-site: cross-site", "sec-fetch-mode: navigate", "sec-fetch-dest: iframe"], 403),
        ("GET", ["sec-fetch-site: cross-site", "sec-fetch-mode: navigate"], 403),
        ("GET", ["sec-fetch-site: none", "sec-fetch-site: cross-site"], 403),
        ("GET", ["sec-fetch-site: unheard-of"], 403),
        ("POST", ["sec-fetch-site: cross-site", "content-type: application/json", *TAB], 403),
    ],
)
async def test_another_site_may_only_lead_a_whole_tab_here(method, headers, status):
    assert (await ask(OPEN, *headers, method=method)).status == status


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
@pytest.mark.parametrize("browser", [f"origin: {PAGE}", "sec-fetch-site: same-origin", "sec-fetch-mode: cors"])
async def test_a_browser_must_send_json(method, browser):
    for good in ("application/json", "Application/JSON; charset=utf-8", "application/vnd.api+json"):
        assert (await ask(PAGES, browser, f"content-type: {good}", method=method)).status == 200
    for bad in (
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data",
        "text/plain; application/json",
        "application/json, text/plain",
        "",
    ):
        answer = await ask(PAGES, browser, f"content-type: {bad}", method=method, app=pytest.fail)
        assert (answer.status, answer.error["code"]) == (415, "unsupported_media_type")
    assert (await ask(PAGES, browser, method=method)).status == 415
    twice = ["content-type: application/json", "content-type: text/plain"]
    assert (await ask(PAGES, browser, *twice, method=method)).status == 415


@pytest.mark.parametrize(
    "headers", [[], ["content-type: application/x-www-form-urlencoded"], ["content-type: text/plain"]]
)
async def test_a_script_may_send_any_content_type(headers):
    assert (await ask(OPEN, *headers, method="POST", body=(b"{}",))).body == b"{}"


# Token


@pytest.mark.parametrize(
    "header", [f"authorization: Bearer {TOKEN}", f"authorization: bearer  {TOKEN}", f"x-api-key: {TOKEN}"]
)
async def test_the_token_opens_the_door(header):
    assert (await ask(CLOSED, header)).status == 200


@pytest.mark.parametrize(
    "header",
    [
        "x-other: 1",
        f"authorization: {TOKEN}",
        f"authorization: Basic {TOKEN}",
        f"authorization: Bearer {TOKEN}x",
        f"authorization: Bearer {TOKEN[:-1]}",
        f"authorization: Bearer {TOKEN.upper()}",
        "authorization: Bearer ",
        "authorization: Bearer \xe9",
        "x-api-key: ",
        f"x-api-key: Bearer {TOKEN}",
        f"cookie: token={TOKEN}",
    ],
)
async def test_without_the_token_nothing_is_answered(header):
    answer = await ask(CLOSED, header, app=pytest.fail)
    assert (answer.status, answer.error["code"]) == (401, "invalid_api_key")
    assert answer.values("www-authenticate") == [b"Bearer"]
    assert "--token-file" in answer.error["message"]
    assert TOKEN not in answer.error["message"]


@pytest.mark.parametrize("name", [b"token", b"key", b"api_key", b"access_token", b"authorization"])
async def test_a_token_in_the_address_does_not_count(name):
    assert (await ask(CLOSED, query=name + b"=" + TOKEN.encode(), app=pytest.fail)).status == 401


async def test_only_health_and_the_routes_with_a_key_of_their_own_are_free_of_the_token():
    for path in ("/health", "/health/", "/health/live", "/pinyon/identity", "/pinyon/load"):
        assert (await ask(CLOSED, path=path)).status == 200
    for path in (
        "/healthy",
        "//health",
        "/v1/health",
        "/Health",
        "/pinyonx/load",
        "//pinyon/load",
        "/pinyon",
        "/docs",
        "/",
    ):
        assert (await ask(CLOSED, path=path)).status == 401


# Namespaces

OTHER = "another-token-of-some-length"
SHARED = GuardRules.for_bind("127.0.0.1", tokens=[TOKEN, OTHER])


async def namespace(rules, *headers, path="/v1/models"):
    found = []

    async def app(scope, receive, send):
        found.append(caller_of(Request(scope)).namespace)
        await echo(scope, receive, send)

    assert (await ask(rules, *headers, app=app, path=path)).status == 200
    return found[0]


async def test_each_token_has_a_namespace_of_its_own_which_does_not_tell_it():
    one, again, other = [
        await namespace(SHARED, header)
        for header in (f"authorization: Bearer {TOKEN}", f"x-api-key: {TOKEN}", f"authorization: Bearer {OTHER}")
    ]
    assert one == again != other
    assert "" not in {one, other}
    assert one == await namespace(CLOSED, f"x-api-key: {TOKEN}")  # a second token does not take the first one's away
    for text in (repr(SHARED), one, other):
        assert TOKEN not in text
        assert OTHER not in text


@pytest.mark.parametrize(
    "header", [f"authorization: Bearer {TOKEN}", "authorization: Bearer none", "x-api-key: ", "x: y"]
)
async def test_without_tokens_every_key_is_in_one_namespace(header):
    assert await namespace(OPEN, header) == ""


async def test_what_needs_no_token_is_in_the_common_namespace():
    assert await namespace(SHARED, "authorization: Bearer wrong", path="/pinyon/generate") == ""


async def test_a_wrong_host_is_refused_on_free_paths_too():
    assert (await ask(CLOSED, "host: evil.test", host=False, path="/health")).status == 403


# Sizes


async def test_a_body_at_the_limit_passes():
    answer = await ask(OPEN, f"content-length: {limits.BODY_BYTES}", method="POST", body=(bytes(limits.BODY_BYTES),))
    assert (answer.status, len(answer.body)) == (200, limits.BODY_BYTES)


async def test_a_declared_body_over_the_limit_is_refused_before_it_is_read():
    order = []

    async def receive():
        order.append("read")
        return {"type": "http.disconnect"}

    async def send(message):
        order.append(message.get("status") or message["more_body"])

    headers = [LOCAL, (b"content-length", str(limits.BODY_BYTES + 1).encode())]
    scope = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": headers}
    await Guard(pytest.fail, OPEN)(scope, receive, send)
    assert order == [413, True, "read", False]


async def test_a_body_that_grows_past_the_limit_is_refused_and_the_connection_ends():
    answer = await ask(OPEN, method="POST", body=[bytes(1 << 20)] * 9, app=pytest.fail)
    assert (answer.status, answer.error["code"]) == (413, "request_too_large")
    assert answer.values("connection") == [b"close"]


async def test_a_peer_that_sends_without_end_is_not_read_without_end(monkeypatch):
    monkeypatch.setattr(limits, "LINGER_S", 0.05)
    sent = []

    async def endless():
        await asyncio.sleep(0)
        return {"type": "http.request", "body": bytes(1 << 16), "more_body": True}

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": [LOCAL]}
    await Guard(pytest.fail, OPEN)(scope, endless, send)
    assert [message.get("more_body") for message in sent] == [None, True, False]


@pytest.mark.parametrize(
    "lengths", [["-1"], ["x"], [""], ["+1"], ["1_0"], ["1 "], ["0x10"], ["9" * 5000], ["1", "2"], ["\xb2"]]
)
async def test_a_malformed_length_is_refused(lengths):
    answer = await ask(OPEN, *(f"content-length: {length}" for length in lengths), method="POST", app=pytest.fail)
    assert (answer.status, answer.error["code"]) == (400, "invalid_content_length")


async def test_too_many_and_too_large_headers_are_refused():
    many = [f"x-{number}: 1" for number in range(limits.MAX_HEADERS)]
    assert (await ask(OPEN, *many[1:])).status == 200
    assert (await ask(OPEN, *many, app=pytest.fail)).error["code"] == "headers_too_large"
    assert (await ask(OPEN, f"x-large: {'x' * 32_000}")).status == 200
    for headers, path in (([f"x-large: {'x' * 32_768}"], "/"), ([], "/" + "x" * 32_768)):
        answer = await ask(OPEN, *headers, path=path, app=pytest.fail)
        assert (answer.status, answer.error["code"]) == (431, "headers_too_large")


async def test_ranges_have_no_effect():
    few = "range: bytes=" + ",".join(f"{n}-{n}" for n in range(1000))
    assert (await ask(OPEN, few, body=(b"0123456789",))).body == b"0123456789"
    many = "range: bytes=" + ",".join(f"{n}-{n}" for n in range(10_000))
    assert (await ask(OPEN, many)).status == 431


# What is shown, and what is configured


async def test_what_a_peer_sent_is_echoed_short_and_without_control_characters():
    answer = await ask(OPEN, (b"host", b"\x1b[31m\r\nx\xff" + b"y" * 500), host=False)
    message = answer.error["message"]
    assert "'\\x1b[31m\\r\\nx\\xffyyyy" in message
    assert message.isascii()
    assert message.isprintable()
    assert "y" * 81 not in message


@given(st.binary(max_size=300))
def test_anything_is_shown_in_at_most_eighty_characters(value):
    text = shown(value)
    assert text.isprintable()
    assert len(text) <= 82


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("allow_origins", "*", "every page"),
        ("allow_origins", "null", "every page"),
        ("allow_origins", "file://", "every local file"),
        ("allow_origins", "https://app.test/", "no slash at its end"),
        ("allow_origins", "https://*.app.test", "as browsers send it"),
        ("allow_origins", "https://App.test", "lower case"),
        ("allow_origins", "app.test", "as browsers send it"),
        ("allow_origins", "", "as browsers send it"),
        ("allow_hosts", "*", "pattern"),
        ("allow_hosts", "*.box.test", "pattern"),
        ("allow_hosts", "box.test:80", "without port"),
        ("allow_hosts", "http://box.test", "scheme"),
        ("allow_hosts", "box.test.", "one name"),
        ("allow_hosts", "", "one name"),
    ],
)
def test_rules_that_could_never_match_are_refused(option, value, message):
    with pytest.raises(UsageError, match=message):
        GuardRules.for_bind("127.0.0.1", **{option: [value]})
