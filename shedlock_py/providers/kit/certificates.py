"""Certificates in files, for drivers that take an ``ssl.SSLContext``."""

from __future__ import annotations

import errno
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from shedlock_py.errors import ConfigurationError
from shedlock_py.model.booleans import parse_boolean
from shedlock_py.providers.kit.failures import NotSent

TLS_OPTIONS = ("ca", "cert", "key", "tls")
"""Options of a URL."""
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)


@dataclass(frozen=True)
class Certificates:
    """Files in PEM format.

    :ivar ca: the certificates to trust. None for the system's certificates.
    :ivar cert: the certificate of this client.
    :ivar key: its key, if ``cert`` does not contain it.
    """

    ca: str | None = None
    cert: str | None = None
    key: str | None = None

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Certificates | None:
        """Return None for a URL without TLS. Any certificate turns TLS on.

        :raises ConfigurationError: the options contradict each other.
        """
        is_tls = parse_boolean(options["tls"], "store URL: tls") if "tls" in options else None
        has_certificates = any(name in options for name in ("ca", "cert", "key"))
        if "key" in options and "cert" not in options:
            raise ConfigurationError("store URL: key is the key of a certificate: name that as well, with cert")
        if is_tls is False and has_certificates:
            raise ConfigurationError("store URL: tls=false, but there are certificates in ca, cert or key")
        is_on = is_tls or has_certificates
        return cls(options.get("ca"), options.get("cert"), options.get("key")) if is_on else None

    def context(self) -> ssl.SSLContext:
        """:raises ConfigurationError: a file cannot be read, or is not a certificate."""
        with file_errors(f"ca={self.ca!r}"):
            context = ssl.create_default_context(cafile=self.ca)
        if self.cert:
            with file_errors(f"cert={self.cert!r}" + (f", key={self.key!r}" if self.key else "")):
                context.load_cert_chain(self.cert, self.key)
        return context

    def observed_context(self) -> tuple[ssl.SSLContext, list[bool]]:
        """Return the context, and a list that gets an entry for each handshake with it.

        For a driver that goes on without TLS, and sends the password, if the server does not offer TLS.
        """
        context, handshakes = self.context(), list[bool]()

        class Observed(ssl.SSLObject):
            def do_handshake(self) -> None:
                super().do_handshake()
                handshakes.append(True)

        context.sslobject_class = Observed
        return context, handshakes

    def content(self) -> tuple[bytes, ...]:
        """Return the content of the files, to find out whether they were replaced.

        :raises ConfigurationError: a file cannot be read.
        """
        content = []
        for option in ("ca", "cert", "key"):
            if name := getattr(self, option):
                with file_errors(f"{option}={name!r}"):
                    content.append(Path(name).read_bytes())
        return tuple(content)


@contextmanager
def file_errors(options: str) -> Iterator[None]:
    """Raise :class:`ConfigurationError` for files that cannot be read or are not certificates.

    :param options: the options that name the files, for the message.
    """
    try:
        yield
    except ssl.SSLError as error:
        raise ConfigurationError(
            f"store URL: {options}: not a certificate in PEM, or its key does not match ({error})"
        ) from error
    except OSError as error:
        if error.errno in _NO_DESCRIPTOR:
            raise NotSent from error  # temporary: this file can be opened after other files are closed
        raise ConfigurationError(f"store URL: {options}: {error.strerror}") from error
