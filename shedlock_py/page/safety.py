"""Safety around all views of the page: limits, token, protection of forms, and headers."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import secrets
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, quote, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shedlock_py.errors import ConfigurationError

LONGEST_ADDRESS = 2_000
LONGEST_BODY = 16_000
BODY_SECONDS = 10
MOST_FIELDS = 20
SHORTEST_TOKEN = 16
COOKIE = "shedlock_csrf"
FIELD = "csrf"
OPEN_TO_ALL = ("/robots.txt",)

POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # with no-referrer, browsers send "Origin: null" with forms
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "x-robots-tag": "noindex, nofollow",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


def checked_token(token: str | None) -> str | None:
    """Return ``token``.

    :raises ConfigurationError: the token can be guessed, or nobody can type it.
    """
    if token is not None and len(token) < SHORTEST_TOKEN:
        raise ConfigurationError(
            f"the token of the page has {len(token)} characters; the minimum is {SHORTEST_TOKEN}. Make one with: "
            f'python3 -c "import secrets; print(secrets.token_urlsafe())"'
        )
    if token is not None and (not token.isprintable() or token != token.strip()):
        raise ConfigurationError(
            "the token of the page has a control character, or a space or line end around it, so nobody can type it as "
            "a password. If it was read from a file, strip it"
        )
    return token


def proof(visitor: Visitor, action: str, name: str) -> str:
    """Return a proof that this browser has made a change. The address of the next page has it; links do not."""
    return hmac.new(visitor.csrf.encode(), f"{action}\0{name}".encode(errors="replace"), "sha256").hexdigest()[:32]


class Refusal(Exception):
    """A request is refused."""

    def __init__(self, status: int, text: str, **headers: str) -> None:
        super().__init__(text)
        self.response = PlainTextResponse(f"{text}\n", status, headers=headers)


class Visitor(NamedTuple):
    """Facts from :class:`RequestFilter` about a request, in ``scope["shedlock"]``."""

    user: str
    """The user name that came with the token. Everybody with the token can give any name."""
    form: Mapping[str, str]
    csrf: str
    """The secret that the forms of this browser must send back."""


class RequestFilter:
    """ASGI middleware. A request that passes is safe to carry out.

    :param hosts: the host names that requests may use, against DNS rebinding. Empty: any host name.
    """

    def __init__(
        self, app: ASGIApp, *, token: str | None, allow_changes: bool, hosts: Collection[str] = frozenset()
    ) -> None:
        self._app = app
        self._token = token
        self._allow_changes = allow_changes
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # a websocket: this closes it
            await send({"type": "websocket.close", "code": 1008})
            return
        headers = Headers(scope=scope)
        csrf = _cookie(headers)
        is_new = not csrf
        csrf = csrf or secrets.token_urlsafe(24)

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                found = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    found[name] = value
                found.setdefault("cache-control", "no-store")
                if is_new and self._allow_changes:
                    found.append("set-cookie", _set_cookie(scope, csrf))
            await send(message)

        try:
            user = self._check(scope, headers)
            form: Mapping[str, str] = {}
            if scope["method"] == "POST":
                form = _form(await _body(Request(scope, receive)))
                if is_new or not hmac.compare_digest(form.get(FIELD, "").encode(), csrf.encode()):
                    raise Refusal(
                        403, "This form is not from this page, or is too old: go back, reload, and try again."
                    )
            scope["shedlock"] = Visitor(user, form, csrf)
            response: Any = self._app
        except Refusal as refusal:
            response = refusal.response
        await response(scope, receive, send_safely)

    def _check(self, scope: Scope, headers: Headers) -> str:
        """Return the user's name, which may be empty.

        :raises Refusal: the request is not for this page.
        """
        if len(scope["path"]) + len(scope["query_string"]) > LONGEST_ADDRESS:
            raise Refusal(414, f"This address is longer than {LONGEST_ADDRESS} characters.")
        if self._hosts and _host_of(headers.get("host", "")) not in self._hosts:
            raise Refusal(421, "This page is served to this machine only. Behind a proxy, start it with a token.")
        is_open = scope["path"].removeprefix(scope.get("root_path", "")) in OPEN_TO_ALL
        user = "" if is_open or self._token is None else self._user(headers)
        if scope["method"] not in ("GET", "HEAD", "POST"):
            raise Refusal(405, "Only GET, HEAD and POST.", allow="GET, HEAD, POST")
        if scope["method"] == "POST":
            if not self._allow_changes:
                raise Refusal(403, "This page is read-only: it was started without --allow-changes.")
            _check_origin(headers)
        return user

    def _user(self, headers: Headers) -> str:
        """Return the user's name.

        :raises Refusal: the request does not have the token.
        """
        kind, _, value = headers.get("authorization", "").partition(" ")
        user, password = "", ""
        if kind.lower() == "bearer":
            password = value.strip()
        elif kind.lower() == "basic":
            try:
                user, _, password = base64.b64decode(value, validate=True).decode().partition(":")
            except (binascii.Error, ValueError):
                password = ""
        if not hmac.compare_digest(password.encode(), (self._token or "").encode()):
            challenge = {"www-authenticate": 'Basic realm="shedlock", charset="UTF-8"'}
            raise Refusal(401, "The token is missing or wrong: give it as the password, with your name.", **challenge)
        return user


def root_of(scope: Scope) -> str:
    """Return the path of the mounted page, quoted for addresses."""
    return quote(scope.get("root_path", ""), errors="replace")


def _host_of(value: str) -> str:
    """Return the host name of a ``Host`` header, without its port."""
    try:
        return (urlsplit(f"//{value}").hostname or "").lower()
    except ValueError:
        return ""


def _check_origin(headers: Headers) -> None:
    """Check the header that names the site of a form. The cookie alone proves less: other pages of this host, on any
    port, have it, too.

    :raises Refusal: another site sent this form, or neither header names the site.
    """
    site, origin = headers.get("sec-fetch-site"), headers.get("origin", "")
    try:
        host = urlsplit(origin).netloc.lower()
        is_same = bool(host) and host == headers.get("host", "").lower()
    except ValueError:  # not an address
        is_same = False
    if (site != "same-origin") if site is not None else not is_same:
        raise Refusal(403, "This form was sent by another site. If it was not, let your proxy pass on the Host header.")


def _cookie(headers: Headers) -> str:
    for part in headers.get("cookie", "").split(";"):
        name, _, value = part.strip().partition("=")
        if name == COOKIE and len(value) == 32 and value.replace("-", "").replace("_", "").isalnum():
            return value
    return ""


def _set_cookie(scope: Scope, value: str) -> str:
    response = Response()
    path, is_https = root_of(scope) or "/", scope["scheme"] == "https"
    response.set_cookie(COOKIE, value, path=path, secure=is_https, httponly=True, samesite="strict")
    return response.headers["set-cookie"]


async def _body(request: Request) -> bytes:
    """Return the body of the form.

    :raises Refusal: the body is not a form of this page.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/x-www-form-urlencoded":
        raise Refusal(415, "Only forms of this page.")
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > LONGEST_BODY:
                    raise Refusal(413, f"This form is longer than {LONGEST_BODY} bytes.")
    except ClientDisconnect as error:
        raise Refusal(400, "The form is not complete.") from error
    except TimeoutError as error:
        raise Refusal(408, "The form did not arrive in time.") from error
    return bytes(body)


def _form(body: bytes) -> dict[str, str]:
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=MOST_FIELDS))
    except ValueError as error:
        raise Refusal(400, "This form cannot be read.") from error
