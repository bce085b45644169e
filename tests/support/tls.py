"""TLS for test servers: certificates, and a forwarder for clients and proxies without TLS."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import ssl
import threading
from contextlib import suppress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tests.support.database import Address
from tests.support.ports import LOOPBACK

VALID_FROM = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
VALID_UNTIL = datetime.datetime(2100, 1, 1, tzinfo=datetime.UTC)
"""Long enough for servers and clients whose clocks a test sets to another year."""


class Certificates:
    """Certificates of an authority, of the server, and of an administrator; files in a directory.

    They have the extensions that RFC 5280 requires: by default, Python 3.13 trusts only such certificates.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        authority_key = ec.generate_private_key(ec.SECP256R1())
        self._authority_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")])
        self._authority_key = authority_key
        self.authority, _ = self._issue("authority", [], None)
        self.server, self.server_key = self._issue("server", [], ExtendedKeyUsageOID.SERVER_AUTH)
        administrator = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, "system:masters")]
        self.client, self.client_key = self._issue("client", administrator, ExtendedKeyUsageOID.CLIENT_AUTH)

    def client_context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.authority))
        context.load_cert_chain(self.client, self.client_key)
        return context

    def _issue(
        self, name: str, subject: list[x509.NameAttribute[str]], usage: x509.ObjectIdentifier | None
    ) -> tuple[Path, Path]:
        is_authority = usage is None
        key = self._authority_key if is_authority else ec.generate_private_key(ec.SECP256R1())
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name), *subject]))
            .issuer_name(self._authority_name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(VALID_FROM)
            .not_valid_after(VALID_UNTIL)
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        )
        authority_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._authority_key.public_key())
        builder = builder.add_extension(authority_id, critical=False)
        builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        builder = builder.add_extension(_key_usage(is_authority), critical=True)
        if usage is not None:
            hosts = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(LOOPBACK))])
            builder = builder.add_extension(hosts, critical=False)
            builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        signed = builder.sign(self._authority_key, hashes.SHA256())
        certificate_file, key_file = self._directory / f"{name}.crt", self._directory / f"{name}.key"
        certificate_file.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        key_file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return certificate_file, key_file


def _key_usage(is_authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


class TlsForwarder:
    """Accept connections without TLS and pass their bytes on over TLS."""

    def __init__(self, upstream: Address, context: ssl.SSLContext) -> None:
        self._upstream, self._context = upstream, context
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None] | None] = set()
        started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(started,), daemon=True)
        self._thread.start()
        started.wait()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()

    def _run(self, started: threading.Event) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve(started))

    async def _serve(self, started: threading.Event) -> None:
        self._end = asyncio.Event()
        server = await asyncio.start_server(self._forward, LOOPBACK, 0, backlog=256)
        self.address: Address = server.sockets[0].getsockname()
        started.set()
        await self._end.wait()
        server.close()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        self._tasks.add(task)  # the event loop itself keeps no reference
        with suppress(OSError):
            host, port = self._upstream
            connecting = asyncio.open_connection(host, port, ssl=self._context)
            server_reader, server_writer = await asyncio.wait_for(connecting, 10)
            await asyncio.gather(_pump(reader, server_writer), _pump(server_reader, writer))
        writer.close()
        self._tasks.discard(task)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while chunk := await reader.read(65536):
            writer.write(chunk)
            await writer.drain()
    except OSError:  # either end has closed its connection
        pass
    finally:
        writer.close()  # TLS cannot close one direction
