"""A proxy that loses the replies to chosen requests, however often they are asked again."""

from tests.services.database import Address
from tests.services.proxy import TcpProxy, _Link


class LossyProxy(TcpProxy):
    def __init__(self, upstream: Address) -> None:
        self._marker = b""
        self._left = 0
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
            self.drop_next_reply()
        return super()._may_pass(link, chunk, to_server=to_server)
