"""The Python of the provider pages runs on real servers.

The Python blocks of one page are one script, run in an empty directory where any warning is an error. Test servers'
addresses replace the pages' addresses. Blocks marked ``norun`` do not run: ``test_blocks.py`` has the reasons, and runs
the pages of other providers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

import pytest

from shedlock_py import ConfigurationError, LockProvider, LockRequest, ProviderError, ShedLockError, provider_from_url
from shedlock_py.providers.etcd import EtcdLockProvider
from shedlock_py.providers.redis import RedisLockProvider, RedisQuorumLockProvider
from tests.guides.documents import check_script, script_of, yaml_of
from tests.support.azblob import AzuriteServer
from tests.support.dynamodb import DynamoDBServer
from tests.support.etcd import EtcdServer
from tests.support.fake_kubernetes import LEASES
from tests.support.kubernetes import KubernetesServer
from tests.support.mongodb import MongoServer
from tests.support.nats import NatsServer
from tests.support.ports import free_port
from tests.support.redis import RedisEndpoint, RedisServer
from tests.support.s3 import S3Server
from tests.support.scripts import PROJECT
from tests.support.zookeeper import ZooKeeperServer

PAGES = PROJECT / "docs" / "providers"

Replace = Callable[[str], str]


def run_page(page: str, replace: Replace, directory: Path) -> None:
    check_script(replace(script_of((PAGES / page).read_text())), directory)


def test_the_python_of_the_redis_page(redis_server: RedisEndpoint, tmp_path: Path) -> None:
    number = 9
    with redis_server.client(number) as client:
        client.flushdb()
        url = redis_server.url(number)
        run_page("redis.md", lambda script: script.replace("redis://user:secret@redis.example:6379/0", url), tmp_path)
        assert client.exists("shedlock:{nightly-report}")
        assert 29 * 86400 < client.ttl("shedlock:{nightly-report}") <= 30 * 86400 + 1800
        client.flushdb()


def test_the_python_of_the_quorum_page(redis_nodes: list[RedisServer], tmp_path: Path) -> None:
    servers = redis_nodes[:3]
    places = [urlsplit(server.url()).netloc for server in servers]

    together = "user:secret@redis-1.example,redis-2.example,redis-3.example"
    run_page("redis-quorum.md", lambda script: script.replace(together, ",".join(places)), tmp_path)
    for server in servers:
        with server.client() as client:
            assert client.hget("shedlock:node", "joined") == b"1"
            client.delete("shedlock:node", *client.scan_iter("shedlock:{*"))


def test_the_python_of_the_mongodb_page(mongodb_server: MongoServer, tmp_path: Path) -> None:
    database = f"pages_{uuid4().hex[:8]}"
    url = mongodb_server.url(database)

    def replace(script: str) -> str:
        script, count = re.subn(r'"mongodb://[^"]*example[^"]*"', repr(url), script)
        assert count == 2
        return script.replace('client["jobs"]', f'client["{database}"]')

    run_page("mongodb.md", replace, tmp_path)
    with mongodb_server.connect() as client:
        assert client[database]["shedlock"].find_one({"_id": "nightly-report"}) is not None
        client.drop_database(database)


def test_the_python_of_the_dynamodb_page(dynamodb_server: DynamoDBServer, tmp_path: Path) -> None:
    table = f"pages_{uuid4().hex[:8]}"

    def replace(script: str) -> str:
        assert script.count("dynamodb://shedlock?region=eu-west-1") == 1
        return script.replace("dynamodb://shedlock?region=eu-west-1", dynamodb_server.url(table) + "&timeout=60s")

    run_page("dynamodb.md", replace, tmp_path)
    item = dynamodb_server.item(table, "nightly-report")
    assert item is not None
    assert item["releasedBy"] == item["lockedBy"]


def test_the_python_of_the_s3_page(s3_server: S3Server, tmp_path: Path) -> None:
    prefix = f"pages_{uuid4().hex[:8]}"

    def replace(script: str) -> str:
        assert script.count("s3://my-bucket/locks?region=eu-west-1") == 1
        return script.replace("s3://my-bucket/locks?region=eu-west-1", s3_server.url(prefix=prefix) + "&timeout=60s")

    run_page("s3.md", replace, tmp_path)
    assert s3_server.keys(prefix) == [f"{prefix}/nightly-report.json"]


def test_the_python_of_the_azblob_page(azblob_server: AzuriteServer, tmp_path: Path) -> None:
    prefix = f"pages_{uuid4().hex[:8]}"

    def replace(script: str) -> str:
        assert script.count("azblob://myaccount/locks") == 1
        return script.replace("azblob://myaccount/locks", azblob_server.url(prefix=prefix) + "&timeout=60s")

    run_page("azblob.md", replace, tmp_path)
    assert azblob_server.keys(prefix) == [f"{prefix}/nightly-report.json"]


def test_the_python_of_the_kubernetes_page(kubernetes_server: KubernetesServer, tmp_path: Path) -> None:
    namespace = f"pages-{uuid4().hex[:8]}"
    url = kubernetes_server.url(namespace)
    run_page("kubernetes.md", lambda script: script.replace('"kubernetes://"', repr(url)), tmp_path)
    lease = kubernetes_server.ask("GET", LEASES.format(namespace) + "/nightly-report")
    shown = yaml_of(PAGES / "kubernetes.md", "kubectl get lease nightly-report -o yaml")[0]
    for found in (lease, shown):
        found["metadata"]["annotations"]["shedlock-py/record"] = [
            name for name in json.loads(found["metadata"]["annotations"]["shedlock-py/record"]) if name != "free"
        ]
    assert shown["metadata"]["annotations"] == lease["metadata"]["annotations"]
    assert shown["metadata"]["labels"] == lease["metadata"]["labels"]
    assert {*shown["spec"]} == {*lease["spec"]}


def test_the_python_of_the_zookeeper_page(zookeeper_server: ZooKeeperServer, tmp_path: Path) -> None:
    path = f"/pages-{uuid4().hex[:8]}"
    place = "{}:{}{}".format(*zookeeper_server.address, path)
    run_page("zookeeper.md", lambda script: script.replace("zk1.example,zk2.example,zk3.example", place), tmp_path)
    with zookeeper_server.client() as client:
        fields = json.loads(client.get(f"{path}/nightly-report")[0])
    documented = (PAGES / "zookeeper.md").read_text().partition("```text")[2].partition("```")[0]
    assert set(fields) == {*re.findall(r'"(\w+)":', documented), "free"}


def test_the_python_of_the_nats_page(nats_server: NatsServer, tmp_path: Path) -> None:
    url, place = nats_server.url("pages"), "nats://nats1.example,nats2.example,nats3.example/shedlock"
    run_page("nats.md", lambda script: script.replace(place, url), tmp_path)
    assert nats_server.keys("pages") == ["nightly-report"]


def test_the_python_of_the_etcd_page(etcd_server: EtcdServer, tmp_path: Path) -> None:
    prefix = f"/pages_{uuid4().hex[:8]}/"
    place = "{}:{}{}".format(*etcd_server.address, prefix)

    def replace(script: str) -> str:
        script, count = re.subn(r"etcd1\.example,etcd2\.example,etcd3\.example", place, script)
        assert count == 1
        return script

    run_page("etcd.md", replace, tmp_path)
    with closing(EtcdLockProvider(etcd_server.url(prefix=prefix))) as provider:
        assert {record.name for record in provider.records()} == {"nightly-report"}


# The permissions


def acl(user: str) -> str:
    """Return a user's ACL from the page on Redis."""
    found = re.search(rf"^ACL SETUSER {user} +(.*)$", (PAGES / "redis.md").read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


def limited(server: RedisEndpoint, rules: str) -> str:
    """Yield the URL of a user with these rules."""
    with server.client() as client:
        client.execute_command("ACL SETUSER", "limited", *rules.split())  # type: ignore[no-untyped-call]  # has no types
    parts = urlsplit(server.url())
    return f"{parts.scheme}://limited:secret@{parts.hostname}:{parts.port}{parts.path}"


def jobs(provider: LockProvider) -> None:
    lease = provider.acquire(LockRequest("acl", "1m"))
    assert lease is not None
    assert provider.acquire(LockRequest("acl", "1m")) is None
    assert provider.extend(lease, "2m") is lease
    assert provider.release(lease) is True
    assert provider.release(provider.take_over(LockRequest("acl", "1m"))) is True
    assert provider.record("acl") is not None


def tools(provider: LockProvider) -> None:
    provider.take_over(LockRequest("acl", "1m"))
    assert provider.force_release("acl") is True
    assert [record.name for record in provider.records("acl")] == ["acl"]
    assert provider.prune(0) >= 1


def test_the_permissions_of_the_redis_page_are_enough(redis_nodes: list[RedisServer]) -> None:
    server = redis_nodes[0]
    for rules in (acl("jobs"), acl("tools")):
        provider = RedisLockProvider(limited(server, rules))
        jobs(provider)
        if rules == acl("tools"):
            tools(provider)
        provider.close()
    for command in re.findall(r"\+(\w+)", acl("jobs")):  # the page asks for no more than needed
        if command != "eval":
            provider = RedisLockProvider(limited(server, acl("jobs").replace(f" +{command}", f" -{command}")))
            with pytest.raises(ProviderError):
                jobs(provider)
            provider.close()
    with server.client() as client:
        client.acl_deluser("limited")


def test_the_permissions_of_the_quorum_page_are_enough(redis_nodes: list[RedisServer]) -> None:
    more = re.search(r"of tools, and `(.*)`", (PAGES / "redis-quorum.md").read_text())
    assert more is not None
    servers = redis_nodes[:3]
    provider = RedisQuorumLockProvider([limited(server, f"{acl('tools')} {more[1]}") for server in servers])
    provider.start_new_quorum()
    jobs(provider)
    tools(provider)
    provider.close()
    for server in servers:
        with server.client() as client:
            client.delete("shedlock:node", "shedlock:{acl}")
            client.acl_deluser("limited")


# Errors that the pages quote


def test_the_messages_that_the_pages_quote(redis_nodes: list[RedisServer], tmp_path: Path) -> None:
    server = redis_nodes[0]
    place = urlsplit(server.url()).netloc
    dead = f"127.0.0.1:{free_port()}"
    with server.client() as client:
        client.set("pages:{string}", "x")
    quorum = f"redis+quorum://{','.join(urlsplit(node.url()).netloc for node in redis_nodes[:3])}/8"

    def acquire(url: str, lock_at_most_for: str = "1m") -> None:
        provider_from_url(url).acquire(LockRequest("pages", lock_at_most_for))

    def acquire_string() -> None:
        RedisLockProvider(server.url(), key_prefix="pages").acquire(LockRequest("string", "1m"))

    def start_new_quorum(*urls: str) -> None:
        RedisQuorumLockProvider(urls, key_prefix="pages-new").start_new_quorum()

    def force_release_without_permission() -> None:
        provider = RedisLockProvider(limited_url)
        provider.take_over(LockRequest("acl", "1m"))
        provider.force_release("acl")

    limited_url, (second, third) = limited(server, acl("jobs")), (node.url() for node in redis_nodes[1:3])
    product, version = server.version()
    is_old = product == "Redis" and version.startswith("7.0.")
    may_not_run = "can't run this command or subcommand" if is_old else "no permissions to run the '"
    provoked: dict[str, dict[str, Callable[[], object]]] = {
        "sqlite.md": {
            "no such table: main.shedlock — create the table": lambda: acquire(f"sqlite:///{tmp_path}/empty.db"),
            "unable to open database file": lambda: acquire(f"sqlite:///{tmp_path}/no/such/locks.db"),
            "an in-memory SQLite database is private to one connection": lambda: acquire("sqlite://"),
        },
        "redis.md": {
            "another program uses this key": acquire_string,
            may_not_run: force_release_without_permission,
            "no permissions to": lambda: RedisLockProvider(limited_url).records(),
        },
        "redis-quorum.md": {
            "of 3 servers did not reply": lambda: acquire(f"redis+quorum://{place},{dead},127.0.0.1:1"),
            "are in quarantine for": lambda: acquire(quorum),
            "a new quorum needs all its servers once": lambda: start_new_quorum(second, third, f"redis://{dead}"),
            "some of these servers are the same": lambda: start_new_quorum(
                server.url(), server.url().replace("127.0.0.1", "localhost"), second
            ),
            "is longer than longest_lease": lambda: acquire(quorum, "2h"),
        },
    }
    # These errors need no explanation on a page.
    clear: dict[str, Callable[[], object]] = {
        "connecting to": lambda: acquire(f"redis://{dead}"),
        "bad Redis URL": lambda: acquire("redis://host:port"),
        "invalid username-password pair": lambda: acquire(f"redis://limited:wrong@{place}"),
        "needs an odd number of servers": lambda: acquire("redis+quorum://one,two"),
        "needs different servers": lambda: acquire("redis+quorum://one,two,one"),
    }
    for page, messages in {**provoked, "": clear}.items():
        text = (PAGES / page).read_text() if page else " ".join(clear)
        for message, provoke in messages.items():
            with pytest.raises((ShedLockError, ConfigurationError)) as caught:
                provoke()
            assert message in str(caught.value)
            assert message in text, f"{message} is not on the page {page}"
    for node in redis_nodes:
        for number in (0, 8):
            with node.client(number) as client:
                client.delete("shedlock:node", "pages:{string}", *client.scan_iter("shedlock:{pages*"))
    with server.client() as client:
        client.acl_deluser("limited")
