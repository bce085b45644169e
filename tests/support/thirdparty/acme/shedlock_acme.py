"""Locks in an Acme: a URL such as ``acme://host`` opens the provider."""

from shedlock_py import AsyncInMemoryLockProvider, InMemoryLockProvider


class AcmeLockProvider(InMemoryLockProvider):
    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = url


class AsyncAcmeLockProvider(AsyncInMemoryLockProvider):
    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = url
