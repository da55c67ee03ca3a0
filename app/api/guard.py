"""The guard of the HTTP door: one ASGI layer in front of every route, known or not.

What a request must pass, in this order: the size of its headers, a Host that is this server's own (no DNS rebinding), an
Origin and Sec-Fetch-Site that no foreign page sends, the token, a content type that no HTML form can send, the size of its
body. CORS preflights are answered here, before the token: browsers send them without one. The guard reads the body, so that
routes get requests that are whole, and closes the connection of whatever it refuses.
"""

import asyncio
import hashlib
import re
from collections.abc import Awaitable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

import msgspec
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pinyon.app import limits
from pinyon.app.api.errors import ErrorAnswer
from pinyon.app.api.reach import bracketed, host_names
from pinyon.app.errors import UsageError
from pinyon.models.disk import printable

Headers = tuple[tuple[bytes, bytes], ...]
ANSWER_HEADERS: Headers = ((b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"))
"""On every answer. A value of the application's own gives way."""
_OWN_HEADERS = {b"access-control-allow-origin", *dict(ANSWER_HEADERS)}  # CORS is decided here alone

_HOST = re.compile(rb"(?P<name>\[[0-9a-f:.]+\]|[^\s:\[\]@/]+)(?::[0-9]{1,5})?", re.IGNORECASE)
_HOST_NAME = re.compile(r"\[[0-9a-f:.]+\]|[a-z0-9_](?:[a-z0-9._-]*[a-z0-9_])?")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^\s/?#*A-Z]+")
_LENGTH = re.compile(rb"[0-9]{1,20}")
_JSON_TYPE = re.compile(rb"application/(?:json|[!-~]+\+json)")
# What the SDKs of this API's dialects send from a browser.
_CORS_HEADER = re.compile(
    rb"accept|authorization|content-type|user-agent|x-api-key|(?:anthropic|openai|x-stainless)-[a-z0-9-]+"
)
_NAMESPACE = "pinyon.namespace"
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer given before any route: a status and OpenAI's error object. It is the last of its connection."""

    status: int
    code: str
    message: str
    more_headers: Headers = ()

    @property
    def body(self) -> bytes:
        return msgspec.json.encode(ErrorAnswer.of(self.status, self.message, self.code))

    @property
    def headers(self) -> Headers:
        length = str(len(self.body)).encode()
        fixed = ((b"content-type", b"application/json"), (b"content-length", length), (b"connection", b"close"))
        return fixed + self.more_headers


@dataclass(frozen=True, slots=True)
class GuardRules:
    """Whom the guard lets in: names of this server (lower case, IPv6 in brackets), origins of pages, and with tokens only who
    shows one. Of these it keeps the namespaces.
    """

    hosts: frozenset[str]
    origins: frozenset[str] = frozenset()
    namespaces: frozenset[str] = frozenset()

    @classmethod
    def for_bind(
        cls,
        bind_host: str,
        allow_hosts: Iterable[str] = (),
        allow_origins: Iterable[str] = (),
        tokens: Iterable[str] = (),
    ) -> Self:
        """The rules of a server bound to this address. Raises UsageError for a name or an origin that could never match."""
        hosts = host_names(bind_host) | frozenset(map(_checked_host, allow_hosts))
        namespaces = frozenset(_namespace(token.encode()) for token in tokens)
        return cls(hosts, frozenset(map(_checked_origin, allow_origins)), namespaces)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request. What it computes is shared within its `namespace`: its token's own, the common one where the server asks
    for none. `address` is the other end of its connection.
    """

    namespace: str
    address: str

    def client(self, user: str | None) -> str:
        """Return with whom the machine is shared fairly: the token's owner, else the `user` that it names, else the connection."""
        if self.namespace:
            return self.namespace
        named = f"user {user}" if user else f"at {self.address}"
        return hashlib.sha256(named.encode(errors="surrogatepass")).hexdigest()


def caller_of(request: Request) -> Caller:
    """Return who sent a request."""
    namespace = request.scope.get(_NAMESPACE, "")
    assert isinstance(namespace, str), "the guard puts it there"
    return Caller(namespace, ":".join(map(str, request.client or ())))


def _namespace(token: bytes) -> str:
    """A digest: the token itself is told to nobody and written nowhere, and comparing digests tells nothing about how near a guess is."""
    return hashlib.sha256(b"pinyon namespace\0" + token).hexdigest()


class Guard:
    """Wraps the whole application. Websockets are refused: no route speaks them."""

    def __init__(self, app: ASGIApp, rules: GuardRules) -> None:
        self._app = app
        self._rules = rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match scope["type"]:
            case "lifespan":
                await self._app(scope, receive, send)
            case "http":
                await self._serve(scope, receive, send)
            case _:
                await send({"type": "websocket.close", "code": 1008})

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        head = _Head.of(scope)
        send = _with_headers(send, self._cors_headers(head))
        refusal = self._foreign(head)
        if refusal is None and head.is_preflight:
            await _answer_preflight(head, send)
            return
        whole = refusal or self._unfit(head) or await _receive_whole(receive)
        if isinstance(whole, Refusal):
            await _refuse(whole, receive, send)
        elif whole is not None:
            await self._app({**scope, _NAMESPACE: self._namespace_of(head) or ""}, whole, send)

    def _foreign(self, head: "_Head") -> Refusal | None:
        return _header_fault(head) or self._host_fault(head) or self._origin_fault(head)

    def _unfit(self, head: "_Head") -> Refusal | None:
        return self._token_fault(head) or _content_type_fault(head) or _length_fault(head)

    def _host_fault(self, head: "_Head") -> Refusal | None:
        values = head.values(b"host")
        if len(values) != 1:
            return Refusal(400, "invalid_host", f"a request has one Host header, this one has {len(values)}")
        match = _HOST.fullmatch(values[0])
        name = match["name"].decode("latin-1").lower() if match else ""
        if name in self._rules.hosts:
            return None
        flag = f"--allow-host {name[:80]}" if _HOST_NAME.fullmatch(name) else "--allow-host and the name"
        message = f"this server does not answer to the name {shown(values[0])}; to let it, start it with {flag}"
        return Refusal(403, "host_not_allowed", message)

    def _origin_fault(self, head: "_Head") -> Refusal | None:
        origins = head.values(b"origin")
        if origins and self._allowed_origin(head) is None:
            value = shown(b", ".join(origins))
            message = f"pages of the origin {value} may not use this server"
            if len(origins) == 1 and _ORIGIN.fullmatch(origins[0].decode("latin-1")):
                message += f"; to let them, start it with --allow-origin {value}"
            return Refusal(403, "origin_not_allowed", message)
        if not origins and head.is_cross_site and not head.is_navigation:
            message = (
                "a page of another site may not use this server; to let it, start it with --allow-origin and its origin"
            )
            return Refusal(403, "origin_not_allowed", message)
        return None

    def _token_fault(self, head: "_Head") -> Refusal | None:
        if not self._rules.namespaces or _is_free_of_token(head.path) or self._namespace_of(head) is not None:
            return None
        message = "send a token of the server's --token-file, as Authorization: Bearer <token> or as x-api-key: <token>"
        return Refusal(401, "invalid_api_key", message, ((b"www-authenticate", b"Bearer"),))

    def _namespace_of(self, head: "_Head") -> str | None:
        """Return the namespace of the token that a request shows; None where it shows none of this server's."""
        return next(filter(self._rules.namespaces.__contains__, map(_namespace, head.credentials())), None)

    def _allowed_origin(self, head: "_Head") -> bytes | None:
        match head.values(b"origin"):
            case [origin] if origin.decode("latin-1") in self._rules.origins:
                return origin
            case _:
                return None

    def _cors_headers(self, head: "_Head") -> Headers:
        origin = self._allowed_origin(head)
        return () if origin is None else ((b"access-control-allow-origin", origin), (b"vary", b"Origin"))


@dataclass(frozen=True, slots=True)
class _Head:
    """What the guard looks at in a request: all but the body."""

    method: str
    path: str
    target_bytes: int
    headers: Headers

    @classmethod
    def of(cls, scope: Scope) -> Self:
        target_bytes = len(scope.get("raw_path") or scope["path"].encode()) + len(scope["query_string"])
        return cls(scope["method"], scope["path"], target_bytes, tuple(scope["headers"]))

    def values(self, name: bytes) -> list[bytes]:
        return [value for key, value in self.headers if key == name]

    @property
    def size_bytes(self) -> int:
        return self.target_bytes + sum(len(name) + len(value) + 4 for name, value in self.headers)

    @property
    def is_preflight(self) -> bool:
        return self.method == "OPTIONS" and bool(
            self.values(b"origin") and self.values(b"access-control-request-method")
        )

    @property
    def is_cross_site(self) -> bool:
        """Sent for a page of another site, or of the same site but another port or subdomain."""
        return any(value not in (b"none", b"same-origin") for value in self.values(b"sec-fetch-site"))

    @property
    def is_navigation(self) -> bool:
        """A link that was followed in a whole tab: its answer is shown to the user and to no other page. Frames do not count."""
        return (
            self.method in {"GET", "HEAD"}
            and self.values(b"sec-fetch-mode") == [b"navigate"]
            and self.values(b"sec-fetch-dest") == [b"document"]
        )

    @property
    def is_from_browser(self) -> bool:
        return any(name == b"origin" or name.startswith(b"sec-fetch-") for name, _ in self.headers)

    def credentials(self) -> list[bytes]:
        pairs = [value.partition(b" ") for value in self.values(b"authorization")]
        bearers = [token.strip() for scheme, _, token in pairs if scheme.lower() == b"bearer"]
        return bearers + self.values(b"x-api-key")


def shown(value: bytes) -> str:
    """What a peer sent, safe to print: quoted, no control characters, cut."""
    return f"'{printable(value.decode('ascii', 'backslashreplace')[:80])[:80]}'"


def _header_fault(head: _Head) -> Refusal | None:
    if len(head.headers) > limits.MAX_HEADERS:
        return Refusal(431, "headers_too_large", f"{len(head.headers):,} headers; the limit is {limits.MAX_HEADERS:,}")
    if head.size_bytes > limits.HEADER_BYTES:
        message = f"request line and headers take {head.size_bytes:,} bytes; the limit is {limits.HEADER_BYTES:,}"
        return Refusal(431, "headers_too_large", message)
    return None


def _content_type_fault(head: _Head) -> Refusal | None:
    """A page of any site can post a form here unasked, but JSON only after a preflight. Scripts may send what they like."""
    if head.method in _SAFE_METHODS or not head.is_from_browser:
        return None
    types = [value.partition(b";")[0].strip().lower() for value in head.values(b"content-type")]
    if len(types) == 1 and _JSON_TYPE.fullmatch(types[0]):
        return None
    return Refusal(415, "unsupported_media_type", "browsers must send content-type: application/json")


def _length_fault(head: _Head) -> Refusal | None:
    lengths = set(head.values(b"content-length"))
    if len(lengths) > 1 or not all(map(_LENGTH.fullmatch, lengths)):
        return Refusal(400, "invalid_content_length", f"Content-Length is {shown(b', '.join(sorted(lengths)))}")
    return _TOO_LARGE if any(int(length) > limits.BODY_BYTES for length in lengths) else None


_TOO_LARGE = Refusal(413, "request_too_large", f"the body is larger than the limit of {limits.BODY_BYTES:,} bytes")


def _is_free_of_token(path: str) -> bool:
    """Whether a server is alive can be asked without the token; /pinyon/* has a key of its own, so commands never send it."""
    return path == "/health" or path.startswith(("/health/", "/pinyon/"))


def _with_headers(send: Send, cors: Headers) -> Send:
    """`send` with the guard's headers on the answer's start. Everything after it goes straight through."""

    def decorated_send(message: Message) -> Awaitable[None]:
        if message["type"] == "http.response.start":
            kept = [pair for pair in message.get("headers", ()) if pair[0].lower() not in _OWN_HEADERS]
            message = {**message, "headers": [*kept, *ANSWER_HEADERS, *cors]}
        return send(message)

    return decorated_send


async def _receive_whole(receive: Receive) -> Receive | Refusal | None:
    """Read the body. Returns a `receive` that gives it in one piece and then what comes after it; None where the peer left."""
    body = bytearray()
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if len(body) > limits.BODY_BYTES:
            return _TOO_LARGE
        more = message.get("more_body", False)
    pending: list[Message] = [{"type": "http.request", "body": bytes(body), "more_body": False}]

    async def receive_again() -> Message:
        return pending.pop() if pending else await receive()

    return receive_again


async def _answer_preflight(head: _Head, send: Send) -> None:
    """The headers that were asked for and may be sent; browsers hold back a request with any other."""
    asked = b",".join(head.values(b"access-control-request-headers")).lower().split(b",")
    allowed = [name for name in map(bytes.strip, asked) if _CORS_HEADER.fullmatch(name)]
    headers = [
        (b"access-control-allow-methods", b"GET, POST, PUT, PATCH, DELETE"),
        (b"access-control-allow-headers", b", ".join(allowed)),
        (b"access-control-max-age", b"600"),
    ]
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _refuse(refusal: Refusal, receive: Receive, send: Send) -> None:
    """Send the whole answer at once, but end it only when the peer has stopped sending, or `LINGER_S` later."""
    await send({"type": "http.response.start", "status": refusal.status, "headers": list(refusal.headers)})
    await send({"type": "http.response.body", "body": refusal.body, "more_body": True})
    with suppress(TimeoutError):
        async with asyncio.timeout(limits.LINGER_S):
            while (await receive()).get("more_body", False):
                pass
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def _checked_host(host: str) -> str:
    name = bracketed(host)
    if not _HOST_NAME.fullmatch(name):
        raise UsageError(f"--allow-host {host}: give one name or address, without port, scheme or pattern")
    return name


def _checked_origin(origin: str) -> str:
    if origin == "*":
        raise UsageError("--allow-origin *: that would open the server to every page; name each origin")
    if origin in {"null", "file://"}:
        raise UsageError(
            f"--allow-origin {origin}: that would open the server to every page, as any can have a frame of this origin, and to "
            "every local file; serve the page at http://localhost and name that origin"
        )
    if not _ORIGIN.fullmatch(origin):
        raise UsageError(
            f"--allow-origin {origin}: give an origin as browsers send it, like https://app.example or "
            "http://localhost:3000: lower case, no path, no slash at its end"
        )
    return origin
