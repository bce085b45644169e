"""A provider over httpx that another thread or task closes at the last moment before a request."""

from __future__ import annotations

from typing import Any

import httpx
import pytest


def close_before_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let another thread or task close httpx clients just before they send a request."""
    request, async_request = httpx.Client.request, httpx.AsyncClient.request

    def closed(self: httpx.Client, *arguments: Any, **options: Any) -> httpx.Response:
        self.close()
        return request(self, *arguments, **options)

    async def async_closed(self: httpx.AsyncClient, *arguments: Any, **options: Any) -> httpx.Response:
        await self.aclose()
        return await async_request(self, *arguments, **options)

    monkeypatch.setattr(httpx.Client, "request", closed)
    monkeypatch.setattr(httpx.AsyncClient, "request", async_closed)
