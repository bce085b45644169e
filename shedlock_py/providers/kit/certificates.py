"""Certificates in files, for drivers that take an ``ssl.SSLContext``."""

from __future__ import annotations

import errno
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from shedlock_py.errors import ConfigurationError
from shedlock_py.model.booleans import parse_boolean
from shedlock_py.providers.kit.failures import NotSent

TLS_OPTIONS = ("ca", "cert", "key", "tls")
"""Options of a URL."""
NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)


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


class SecretGuard:
    """Keeps secrets from servers without TLS, for a driver that goes on in plain text if the server does not offer TLS.

    :param certificates: None for a URL without TLS.
    """

    def __init__(self, certificates: Certificates | None) -> None:
        self.context = certificates.context() if certificates else None
        """For the driver."""
        self._is_checked = certificates is None
        guard = self

        class Observed(ssl.SSLObject):
            def do_handshake(self) -> None:
                super().do_handshake()
                guard._is_checked = True

        if self.context is not None:
            self.context.sslobject_class = Observed

    def check(self) -> None:
        """:raises OSError: no handshake has succeeded."""
        if not self._is_checked:
            raise OSError("the URL has TLS, and the server does not")

    def secret(self, text: str) -> Callable[[], str] | None:
        """Return a function that returns ``text``, for a driver that calls it when it sends the secret.

        Return None for an empty text.
        """

        def checked() -> str:
            self.check()
            return text

        return checked if text else None


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
        if error.errno in NO_DESCRIPTOR:
            raise NotSent from error  # temporary: this file can be opened after other files are closed
        raise ConfigurationError(f"store URL: {options}: {error.strerror}") from error
