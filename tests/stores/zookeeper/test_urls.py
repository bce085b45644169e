"""URLs, users, rights and TLS."""

from __future__ import annotations

import gc
import logging
from pathlib import Path

import pytest
from kazoo.security import OPEN_ACL_UNSAFE

from shedlock_py import ConfigurationError, LockRequest, ProviderError, ProviderUnreachable
from shedlock_py.providers.zookeeper import ZooKeeperLockProvider
from tests.stores.zookeeper.conftest import Open
from tests.support.locks import acquired
from tests.support.ports import LOOPBACK, free_port
from tests.support.tls import Certificates
from tests.support.zookeeper import ZooKeeperServer


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("zookeeper://", "not of the form"),
        ("zookeeper://host/a/%2E%2E", "not a path of ZooKeeper"),
        ("zookeeper://host?ca=/nowhere.pem", "ca='/nowhere.pem': No such file"),
    ],
)
def test_a_url_that_cannot_work_is_refused(url: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        ZooKeeperLockProvider(url)


def test_a_path_has_the_locks_and_the_repr_shows_no_password() -> None:
    shown = repr(ZooKeeperLockProvider("zookeeper://user:s3cret-pw@one,two:2182/apps/locks"))
    assert shown == "<ZooKeeperLockProvider /apps/locks at zookeeper://one:2181,two:2182>"


def test_znodes_are_for_the_user_of_the_url(
    zookeeper_server: ZooKeeperServer, open_url: Open, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    host, port = zookeeper_server.address
    mine = open_url(f"zookeeper://me:s3cret-p%40@{host}:{port}/rights")
    assert mine.release(acquired(mine, "job")) is True
    for stranger in (f"zookeeper://me:other@{host}:{port}/rights", f"zookeeper://{host}:{port}/rights"):
        with pytest.raises(ProviderError, match="needs all rights") as raised:
            open_url(stranger).acquire(LockRequest("job", "1m"))
        assert not isinstance(raised.value, ProviderUnreachable)
    assert "s3cret" not in caplog.text, "kazoo would log it"


def test_acl_gives_the_znodes_to_everybody(zookeeper_server: ZooKeeperServer, open_url: Open) -> None:
    host, port = zookeeper_server.address
    acquired(open_url(f"zookeeper://me:s3cret@{host}:{port}/open", acl=OPEN_ACL_UNSAFE), "job")
    assert open_url(f"zookeeper://{host}:{port}/open").acquire(LockRequest("job", "1m")) is None


@pytest.mark.slow("starts a server with TLS")
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # kazoo's, after a handshake that fails
def test_tls(tmp_path: Path, open_url: Open) -> None:
    made, port = Certificates(tmp_path), free_port()
    key_store = tmp_path / "server-and-key.pem"
    key_store.write_text(Path(made.server_key).read_text() + Path(made.server).read_text())
    options = [
        "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
        f"secureClientPortAddress={LOOPBACK}",
        f"secureClientPort={port}",
        f"ssl.keyStore.location={key_store}",
        f"ssl.trustStore.location={made.authority}",
        "ssl.trustStore.type=PEM",
    ]
    with ZooKeeperServer(options=options):
        trusted = f"zookeeper://{LOOPBACK}:{port}/tls?ca={made.authority}"
        with pytest.raises(ProviderUnreachable):
            open_url(trusted, timeout="1s").acquire(LockRequest("job", "1m"))  # without the client's certificate
        acquired(open_url(f"{trusted}&cert={made.client}&key={made.client_key}"), "job")
        with pytest.raises(ProviderUnreachable, match="CERTIFICATE_VERIFY_FAILED"):
            open_url(f"zookeeper://{LOOPBACK}:{port}/tls?tls=true", timeout="5s").acquire(LockRequest("job", "1m"))
    gc.collect()  # closes kazoo's sockets while their warnings are ignored
