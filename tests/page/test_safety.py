"""What keeps the page safe. Each sentence of ``docs/reference/page.md`` is tried."""

from __future__ import annotations

import asyncio
import base64
import threading
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from fastapi import Depends, FastAPI, HTTPException
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount

from shedlock_py import ConfigurationError, InMemoryLockProvider, LockRecord
from shedlock_py.page import page_app
from shedlock_py.page.report import report
from tests.page.client import FORM, Client
from tests.page.sample import Sample

TOKEN = "correct-horse-battery-staple"
PATHS = ("/", "/job?name=import", "/leaders", "/store", "/static/page.css", "/robots.txt", "/nosuch", "/change/prune")
FORMS = ("/change/pause", "/change/resume", "/change/force_release", "/change/demote", "/change/prune", "/store")


@pytest.mark.parametrize("path", PATHS)
def test_every_reply_has_the_headers(client: Client, path: str) -> None:
    headers = client.get(path).headers
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; style-src 'self'; script-src 'self';")
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert "form-action 'self'" in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "same-origin"
    assert headers["x-robots-tag"] == "noindex, nofollow"
    assert headers["cache-control"] == ("max-age=3600" if path.startswith("/static") else "no-store")


def test_no_page_has_inline_script_or_style(client: Client) -> None:
    for path in ("/", "/job?name=sync-orders", "/leaders", "/store", "/change/pause?name=import"):
        html = client.html(path)
        assert " style=" not in html
        assert "<style" not in html
        assert " on" + "click" not in html
        assert html.count("<script") == html.count('<script src="/static/page.js?')


def test_robots_are_kept_out(client: Client) -> None:
    assert client.get("/robots.txt").text == "User-agent: *\nDisallow: /\n"


@pytest.mark.parametrize("path", FORMS)
def test_read_only_changes_nothing(sample: Sample, path: str) -> None:
    client = Client(page_app(sample.provider))
    before = sample.provider.records()
    reply = client.request("POST", path, data={"name": "import", "for": "1h", "unused_for": "0s", "seen": "0s"})
    assert (reply.status_code, "read-only" in reply.text) == (403, True)
    if path != "/store":
        assert "read-only" in client.html(f"{path}?name=import", 403)
    assert "…</a>" not in client.html("/job?name=import")
    assert "set-cookie" not in client.get("/").headers
    assert sample.provider.records() == before


# Only this page's forms


@pytest.mark.parametrize("path", FORMS)
def test_a_form_needs_the_secret_of_this_browser(sample: Sample, client: Client, path: str) -> None:
    before = sample.provider.records()
    data = {"name": "import", "for": "1h", "unused_for": "0s", "seen": "0s"}
    assert client.request("POST", path, data=data).status_code == 403  # no cookie
    secret = client.form("/change/pause?name=import")["csrf"]
    for value in ("", secret[:-1], secret + "x", "ü"):
        assert client.request("POST", path, data={**data, "csrf": value}).status_code == 403
    other = Client(client.app)
    other.get("/")
    assert other.request("POST", path, data={**data, "csrf": secret}).status_code == 403
    assert sample.provider.records() == before


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"sec-fetch-site": "same-origin", "origin": None}, 303),
        ({"origin": None}, 403),
        ({"origin": ""}, 403),
        ({"origin": "null", "host": ""}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"sec-fetch-site": "none"}, 403),
        ({"origin": "http://page.test"}, 303),
        ({"origin": "http://evil.test"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://["}, 403),
        ({"origin": "http://page.test:81"}, 403),
    ],
)
def test_a_form_of_another_site(client: Client, headers: dict[str, Any], status: int) -> None:
    fields = client.form("/change/pause?name=clean-up")
    assert client.request("POST", "/change/pause", data=fields, headers=headers).status_code == status


def test_the_cookie_is_for_this_site_only_and_hidden_from_scripts(client: Client) -> None:
    cookie = client.get("/").headers["set-cookie"]
    assert cookie.startswith("shedlock_csrf=")
    assert {"HttpOnly", "Path=/", "SameSite=strict"} <= set(cookie.split("; "))
    assert "Secure" not in cookie
    assert "set-cookie" not in client.get("/").headers  # the browser has one
    secure = Client(client.app, base_url="https://page.test")
    assert "; Secure" in secure.get("/").headers["set-cookie"]


# Token and host


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


@pytest.mark.parametrize(
    ("authorization", "status"),
    [
        (basic("alice", TOKEN), 200),
        (basic("", TOKEN), 200),
        (f"Bearer {TOKEN}", 200),
        ("", 401),
        (basic("alice", ""), 401),
        (basic(TOKEN, "alice"), 401),
        (basic("alice", TOKEN + "x"), 401),
        ("Basic !!!", 401),
        ("Basic /w==", 401),
        (f"Basic {TOKEN}", 401),
        ("Bearer", 401),
    ],
)
def test_without_the_token_only_robots_txt_is_served(sample: Sample, authorization: str, status: int) -> None:
    client = Client(page_app(sample.provider, allow_changes=True, token=TOKEN))
    headers = {"authorization": authorization} if authorization else {}
    for path in ("/", "/static/page.js", "/change/prune", "/nosuch"):
        reply = client.get(path, headers=headers)
        assert reply.status_code == (404 if (status, path) == (200, "/nosuch") else status)
        assert TOKEN not in reply.text
        if status == 401:
            assert reply.headers["www-authenticate"] == 'Basic realm="shedlock", charset="UTF-8"'
    assert client.request("POST", "/change/prune", headers=headers, data={"a": "b"}).status_code == (
        403 if status == 200 else 401
    )
    assert client.get("/robots.txt").status_code == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [("127.0.0.1:8765", 200), ("LOCALHOST", 200), ("[::1]:8765", 200), ("evil.test", 421), ("", 421), ("[", 421)],
)
def test_names_of_the_host(sample: Sample, host: str, status: int) -> None:
    client = Client(page_app(sample.provider, hosts=["127.0.0.1", "localhost", "::1"]))
    assert client.get("/", headers={"host": host}).status_code == status


@pytest.mark.parametrize("token", [f"{TOKEN}\n", f" {TOKEN}", f"{TOKEN}\udcff", f"{TOKEN}\x00{TOKEN}"])
def test_a_token_that_nobody_can_type(sample: Sample, token: str) -> None:
    with pytest.raises(ConfigurationError, match="nobody can type"):
        page_app(sample.provider, token=token)


# Data from other programs


class Odd(InMemoryLockProvider):
    """A store with lock records that no guard would write."""

    NAMES = ("", "x" * 65, "a\x1b[31m\u202eb", "a\ud800'")

    def records(self, prefix: str = "") -> list[LockRecord]:
        now = datetime.now(UTC)
        tomorrow = now + timedelta(days=1)  # for a fire time in the future, the page shows the fault and its cure
        return [LockRecord(name, f"\x1b{name}", now, tomorrow, 5, tomorrow, now) for name in self.NAMES]

    def record(self, name: str) -> LockRecord | None:
        return next((record for record in self.records() if record.name == name), None)


def test_odd_records_of_other_programs_are_shown() -> None:
    provider = Odd(history=5)
    client = Client(page_app(provider, elections=["a"]))
    pages = [client.html(path) for path in ("/", "/leaders", "/store", "/job?name=a%1b%5B31m%E2%80%AEb")]
    for html in (*pages, report(provider)):
        assert not {character for character in html if not character.isprintable()} - {"\n"}
        assert "a\\x1b[31m\\u202eb" in html or "Nobody leads" in html or "ever led" in html


# Limits


def test_a_request_that_is_too_large_or_odd_is_refused(client: Client) -> None:
    assert client.get(f"/?q={'x' * 2000}").status_code == 414
    for method in ("PUT", "DELETE", "OPTIONS", "TRACE", "PATCH"):
        assert client.request(method, "/").status_code == 405
    assert client.request("HEAD", "/").status_code == 200
    headers = {"content-type": FORM}
    assert client.request("POST", "/change/pause", content=b"x" * 16_001, headers=headers).status_code == 413
    assert (
        client.request("POST", "/change/pause", content="&".join("a=b" for _ in range(99)), headers=headers).status_code
        == 400
    )
    assert client.request("POST", "/change/pause", content=b"\xff", headers=headers).status_code == 400
    assert client.request("POST", "/change/pause", json={"name": "x"}).status_code == 415
    assert client.request("POST", "/change/nosuch", content=b"", headers=headers).status_code == 403


def test_a_slow_store_is_not_asked_by_all_visitors_at_once() -> None:
    """At most four requests at a time reach the store, and some visitors are refused at once."""
    gate, at_once = threading.Event(), []
    mutex = threading.Lock()

    class Slow(InMemoryLockProvider):
        inside = 0

        def records(self, prefix: str = "") -> Any:
            with mutex:
                Slow.inside += 1
                at_once.append(Slow.inside)
            gate.wait(30)
            with mutex:
                Slow.inside -= 1
            return super().records(prefix)

    app = page_app(Slow())

    async def visit() -> list[int]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://page.test") as client:
            visits = [asyncio.create_task(client.get("/")) for _ in range(50)]
            refused = [visit async for visit in _done(visits, 14)]
            gate.set()
            return refused + [reply.status_code for reply in await asyncio.gather(*visits)]

    async def _done(visits: list[Any], number: int) -> Any:
        for visit in asyncio.as_completed(visits):
            yield (await visit).status_code
            number -= 1
            if not number:
                return

    codes = asyncio.run(visit())
    assert codes[:14] == [503] * 14
    assert sorted(codes[14:]) == [200] * 36 + [503] * 14
    assert max(at_once) == 1, "one read is for all who wait"


# Passwords, and the place where it is mounted


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://app:s3cret-pw@127.0.0.1:1/app",
        "mysql://app:s3cret-pw@127.0.0.1:1/app",
        "redis://:s3cret-pw@127.0.0.1:1/0",
        "redis+quorum://:s3cret-pw@127.0.0.1:1,127.0.0.1:2,127.0.0.1:3",
        pytest.param("mongodb://app:s3cret-pw@127.0.0.1:1/app", marks=pytest.mark.not_quick("PyMongo waits")),
        "etcd://app:s3cret-pw@127.0.0.1:1/app",
    ],
)
def test_no_password_of_a_url(url: str) -> None:
    from shedlock_py import provider_from_url

    history = "" if url.startswith("etcd") else "&history=5"
    provider: Any = provider_from_url(f"{url}?timeout=200ms{history}")
    client = Client(page_app(provider, allow_changes=True))
    replies = [client.get(path) for path in ("/", "/job?name=x", "/leaders", "/store", "/change/prune")]
    assert {reply.status_code for reply in replies} == {200, 503}
    assert "127.0.0.1" in replies[3].text
    assert "The store does not reply" in replies[0].text
    for reply in replies:
        assert "s3cret-pw" not in reply.text + str(reply.headers)
    provider.close()


def test_a_login_in_front_of_a_mounted_page_is_a_middleware(sample: Sample) -> None:
    """FastAPI does not call dependencies for a mounted app, as the guide says."""

    def refuse() -> None:
        raise HTTPException(401)

    class Login(BaseHTTPMiddleware):
        async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
            return PlainTextResponse("Who are you?", 401)

    for middleware, expected in (((), 200), ([Middleware(Login)], 401)):
        app = FastAPI(dependencies=[Depends(refuse)], middleware=middleware)
        app.add_api_route("/own", lambda: "hello")
        app.mount("/locks", page_app(sample.provider))
        client = Client(app)
        assert [client.get(path).status_code for path in ("/own", "/locks/")] == [401, expected]


def test_mounted_below_another_application(sample: Sample) -> None:
    outer = Starlette(routes=[Mount("/admin/locks", page_app(sample.provider, allow_changes=True))])
    client = Client(outer)
    html = client.html("/admin/locks/")
    assert 'href="/admin/locks/job?name=import"' in html
    assert '<a href="/admin/locks/" aria-current="page">' in html
    assert client.get("/admin/locks/static/page.css").status_code == 200
    fields = client.form("/admin/locks/change/pause?name=clean-up")
    reply = client.request("POST", "/admin/locks/change/pause", data=fields)
    assert reply.status_code == 303
    assert "carried it out" in client.html(reply.headers["location"])
    assert "Path=/admin/locks" in Client(outer).get("/admin/locks/").headers["set-cookie"]


@pytest.mark.parametrize("prefix", ["/the locks", "/50%", "/verrous-é", "/замки", "/a?b#c"])
def test_mounted_below_a_path_that_addresses_must_quote(sample: Sample, prefix: str) -> None:
    quoted = quote(prefix)
    client = Client(Starlette(routes=[Mount(prefix, page_app(sample.provider, allow_changes=True))]))
    html = client.html(f"{quoted}/")
    assert f'href="{quoted}/job?name=import"' in html
    assert f'<a href="{quoted}/" aria-current="page">' in html
    assert client.get(f"{quoted}/static/page.css").status_code == 200
    reply = client.request("POST", f"{quoted}/change/pause", data=client.form(f"{quoted}/change/pause?name=clean-up"))
    assert reply.status_code == 303
    assert "carried it out" in client.html(reply.headers["location"])
