"""A proxy that loses the replies to chosen requests, however often they are asked again."""

from tests.support.database import Address
from tests.support.proxy import TcpProxy, _Link


class LossyProxy(TcpProxy):
    def __init__(self, upstream: Address) -> None:
        self._marker = b""
        self._left = 0
        self._losing: set[_Link] = set()
        super().__init__(upstream)

    def drop_replies_to(self, marker: str, times: int = 1) -> None:
        """Let the server have the next `times` requests that contain `marker`, and swallow its replies."""
        self._marker, self._left = marker.encode(), times

    @property
    def left(self) -> int:
        """How many are still to be swallowed."""
        return self._left

    def _may_pass(self, link: _Link, chunk: bytes, *, to_server: bool) -> bool:
        if to_server and self._left and self._marker in chunk:
            self._left -= 1
            self._losing.add(link)  # on this connection: another's reply may come before
        return super()._may_pass(link, chunk, to_server=to_server)

    def _is_reply_to_drop(self, link: _Link) -> bool:
        if link not in self._losing:
            return super()._is_reply_to_drop(link)
        self._losing.discard(link)
        self._replies_dropped += 1
        return True
