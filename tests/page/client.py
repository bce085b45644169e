"""Requests to the page in this process, without a socket or a server."""

from __future__ import annotations

import asyncio
import re
from html import unescape
from typing import Any
from urllib.parse import quote

import httpx

FORM = "application/x-www-form-urlencoded"


class Client:
    """A browser of one page. It keeps cookies and knows the secret of the forms."""

    def __init__(self, app: Any, *, base_url: str = "http://page.test", **options: Any) -> None:
        self.app = app
        self._options = {"base_url": base_url, **options}
        self._origin = base_url
        self._cookies = httpx.Cookies()

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        if method == "POST":
            headers = {"origin": self._origin, **(options.get("headers") or {})}
            options["headers"] = {name: value for name, value in headers.items() if value is not None}

        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(transport=transport, cookies=self._cookies, **self._options) as client:
                reply = await client.request(method, path, **options)
                self._cookies = client.cookies
                return reply

        return asyncio.run(send())

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.request("GET", path, **options)

    def html(self, path: str, status: int = 200) -> str:
        reply = self.get(path)
        assert reply.status_code == status, reply.text
        assert reply.headers["content-type"] == "text/html; charset=utf-8"
        return reply.text

    def form(self, path: str) -> dict[str, str]:
        """Return the fields of a form for a change, as the page has filled them in, without checkboxes."""
        _, _, form = self.html(path).partition('method="post"')
        fields = re.findall(r'<input (?:type="hidden" )?name="(\w+)" value="([^"]*)"', form)
        return {name: unescape(value) for name, value in fields}

    def change(self, action: str, name: str = "", **values: str) -> httpx.Response:
        path = f"/change/{action}"
        fields = self.form(f"{path}?name={quote(name, safe='')}" if name else path)
        return self.request("POST", path, data={**fields, **values})
