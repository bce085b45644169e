"""docs/how-to/page.md: the page in an ASGI application, and in a WSGI application."""

from __future__ import annotations

import base64
import urllib.error
import urllib.request
from pathlib import Path
from signal import SIGTERM

import pytest

from shedlock_py import LockRequest, provider_from_url
from tests.guides.documents import Page
from tests.programs.applications import application, copied
from tests.support.polling import wait_until
from tests.support.ports import LOOPBACK, free_port

TOKEN = "correct-horse-battery-staple"


def get(port: int, path: str, token: str = TOKEN) -> tuple[int, str]:
    authorization = base64.b64encode(f"alice:{token}".encode()).decode()
    request = urllib.request.Request(
        f"http://{LOOPBACK}:{port}{path}", headers={"Authorization": f"Basic {authorization}"}
    )
    try:
        with urllib.request.urlopen(request, timeout=10) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except OSError:
        return 0, "not there yet"


@pytest.mark.parametrize(("program", "option"), [("uvicorn", "--port {}"), ("gunicorn", f"--bind {LOOPBACK}:{{}}")])
def test_the_page_inside_an_application(program: str, option: str, tmp_path: Path) -> None:
    (command,) = Page("page").commands(f"{program} ")
    directory, port = copied("page", tmp_path), free_port()
    with application(f"{command} {option.format(port)}", directory, SHEDLOCK_PAGE_TOKEN=TOKEN) as app:
        wait_until(lambda: get(port, "/locks/")[0] == 200, timeout=30, what="the page")
        provider = provider_from_url(f"sqlite:///{directory}/app.db?history=50&timeout=60s")
        lease = provider.acquire(LockRequest("nightly-report", "1m", holder="web-1"))
        assert lease is not None
        provider.release(lease)
        status, html = get(port, "/locks/job?name=nightly-report")
        assert (status, "Last 24 hours: 1 ok" in html) == (200, True)
        assert 'href="/locks/static/page.css' in html
        assert get(port, "/locks/static/page.css")[0] == 200
        assert get(port, "/locks/", token="wrong")[0] == 401
        assert app.terminate() in ([0], [-SIGTERM])  # uvicorn raises the signal again at its end
