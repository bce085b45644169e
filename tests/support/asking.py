"""HTTP requests that tests send to servers."""

from __future__ import annotations

import ssl
import urllib.error
import urllib.request


def reply_to(request: urllib.request.Request, context: ssl.SSLContext | None = None) -> bytes:
    """Return the body of the reply. :raises OSError: the server sends no reply, or an error."""
    try:
        with urllib.request.urlopen(request, timeout=5, context=context) as reply:
            body: bytes = reply.read()
            return body
    except urllib.error.HTTPError as error:
        error.close()
        raise
