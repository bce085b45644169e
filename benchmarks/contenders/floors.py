"""The floor of each store: its driver, with the least work that a lease needs.

A record has an owner and an end. One conditional write acquires it, and another releases it. A floor has no token, no
minimum hold, no time limits, no pool and no error handling.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import ssl
import time
from base64 import b64decode, b64encode
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from benchmarks.contenders.base import LEASE, SECONDS, AsyncSession, Contender, Session, load, new_token
from benchmarks.servers import Site
from tests.support.dynamodb import REGION
from tests.support.s3 import BUCKET

TABLE = "floor_locks"
RELEASE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end"


class RedisFloor(Session):
    def __init__(self, site: Site) -> None:
        self.client = load("redis").Redis.from_url(site.url())
        self.release = self.client.register_script(RELEASE)
        self.token = ""

    def take(self, name: str) -> bool:
        self.token = new_token()
        return bool(self.client.set(name, self.token, nx=True, px=SECONDS * 1000))

    def give(self, name: str) -> None:
        self.release(keys=[name], args=[self.token])

    def close(self) -> None:
        self.client.close()


class AsyncRedisFloor(AsyncSession):
    def __init__(self, site: Site) -> None:
        self.client = load("redis.asyncio").Redis.from_url(site.url())
        self.release = self.client.register_script(RELEASE)
        self.token = ""

    async def take(self, name: str) -> bool:
        self.token = new_token()
        return bool(await self.client.set(name, self.token, nx=True, px=SECONDS * 1000))

    async def give(self, name: str) -> None:
        await self.release(keys=[name], args=[self.token])

    async def close(self) -> None:
        await self.client.aclose()


# SQL. The parameters are: owner, lock name; lock name, owner.

_PG_TAKE = (
    f"UPDATE {TABLE} SET ends = now() + interval '{SECONDS} seconds', owner = %s WHERE name = %s AND ends <= now()"
)
_PG_GIVE = f"UPDATE {TABLE} SET ends = now() WHERE name = %s AND owner = %s"
_PG_CREATE = f"CREATE TABLE IF NOT EXISTS {TABLE} (name varchar(64) PRIMARY KEY, ends timestamptz, owner varchar(64))"
_PG_ADD = f"INSERT INTO {TABLE} VALUES (%s, now(), '') ON CONFLICT DO NOTHING"
_MY_NOW = "UTC_TIMESTAMP(6)"
_MY_TAKE = (
    f"UPDATE {TABLE} SET ends = {_MY_NOW} + INTERVAL {SECONDS} SECOND, owner = %s WHERE name = %s AND ends <= {_MY_NOW}"
)
_MY_GIVE = f"UPDATE {TABLE} SET ends = {_MY_NOW} WHERE name = %s AND owner = %s"
_MY_CREATE = f"CREATE TABLE IF NOT EXISTS {TABLE} (name varchar(64) PRIMARY KEY, ends datetime(6), owner varchar(64))"
_MY_ADD = f"INSERT IGNORE INTO {TABLE} VALUES (%s, {_MY_NOW}, '')"
_LITE_NOW = "unixepoch('subsec')"
_LITE_TAKE = f"UPDATE {TABLE} SET ends = {_LITE_NOW} + {SECONDS}, owner = ? WHERE name = ? AND ends <= {_LITE_NOW}"
_LITE_GIVE = f"UPDATE {TABLE} SET ends = {_LITE_NOW} WHERE name = ? AND owner = ?"
_LITE_CREATE = f"CREATE TABLE IF NOT EXISTS {TABLE} (name TEXT PRIMARY KEY, ends REAL, owner TEXT)"
_LITE_ADD = f"INSERT OR IGNORE INTO {TABLE} VALUES (?, 0, '')"


class CursorFloor(Session):
    """A DB-API driver with one open cursor."""

    def __init__(self, connection: Any, create: str, add: str, take: str, give: str) -> None:
        self.connection = connection
        self.cursor = connection.cursor()
        self.cursor.execute(create)
        self.statements = (add, take, give)
        self.known: set[str] = set()
        self.token = ""

    def expect(self, names: Iterable[str]) -> None:
        self.known.update(names)

    def take(self, name: str) -> bool:
        add, take, _ = self.statements
        if name not in self.known:  # create the record first: it exists from the second run on
            self.cursor.execute(add, (name,))
            self.known.add(name)
        self.token = new_token()
        self.cursor.execute(take, (self.token, name))
        return bool(self.cursor.rowcount)

    def give(self, name: str) -> None:
        self.cursor.execute(self.statements[2], (name, self.token))

    def close(self) -> None:
        self.connection.close()


def open_psycopg(site: Site) -> Session:
    arguments = site.arguments
    arguments["dbname"] = arguments.pop("database")
    connection = load("psycopg").connect(autocommit=True, **arguments)
    connection.execute("SET client_min_messages = warning")
    return CursorFloor(connection, _PG_CREATE, _PG_ADD, _PG_TAKE, _PG_GIVE)


def open_pymysql(site: Site) -> Session:
    connection = load("pymysql").connect(autocommit=True, **site.arguments)
    return CursorFloor(connection, _MY_CREATE, _MY_ADD, _MY_TAKE, _MY_GIVE)


def open_sqlite3(site: Site) -> Session:
    connection = sqlite3.connect(site.path, isolation_level=None, timeout=30)
    connection.execute("PRAGMA journal_mode=WAL")
    return CursorFloor(connection, *_sqlite())


def _sqlite() -> tuple[str, str, str, str]:
    if sqlite3.sqlite_version_info >= (3, 42):  # the first version with 'subsec'
        return _LITE_CREATE, _LITE_ADD, _LITE_TAKE, _LITE_GIVE
    older = [text.replace(_LITE_NOW, "julianday('now') * 86400") for text in (_LITE_ADD, _LITE_TAKE, _LITE_GIVE)]
    return _LITE_CREATE, older[0], older[1], older[2]


class AsyncCursorFloor(AsyncSession):
    """Drivers with DB-API cursors and ``await``."""

    def __init__(self, connect: Any, create: str, add: str, take: str, give: str) -> None:
        self.connect = connect
        self.connection: Any = None
        self.cursor: Any = None
        self.create = create
        self.statements = (add, take, give)
        self.known: set[str] = set()
        self.token = ""

    async def start(self) -> None:
        self.connection = await self.connect()
        cursor = self.connection.cursor()
        self.cursor = await cursor if asyncio.iscoroutine(cursor) or hasattr(cursor, "__await__") else cursor
        await self.cursor.execute(self.create)

    async def take(self, name: str) -> bool:
        add, take, _ = self.statements
        if name not in self.known:
            await self.cursor.execute(add, (name,))
            self.known.add(name)
        self.token = new_token()
        await self.cursor.execute(take, (self.token, name))
        return bool(self.cursor.rowcount)

    async def give(self, name: str) -> None:
        await self.cursor.execute(self.statements[2], (name, self.token))

    async def close(self) -> None:
        closing = self.connection.close()
        if hasattr(closing, "__await__"):
            await closing


def open_psycopg_async(site: Site) -> AsyncSession:
    arguments = site.arguments
    arguments["dbname"] = arguments.pop("database")
    psycopg = load("psycopg")

    async def connect() -> Any:
        connection = await psycopg.AsyncConnection.connect(autocommit=True, **arguments)
        await connection.execute("SET client_min_messages = warning")
        return connection

    return AsyncCursorFloor(connect, _PG_CREATE, _PG_ADD, _PG_TAKE, _PG_GIVE)


def open_mysql_async(driver: str) -> Any:
    def open_it(site: Site) -> AsyncSession:
        arguments = site.arguments
        arguments["db"] = arguments.pop("database")

        async def connect() -> Any:
            return await load(driver).connect(autocommit=True, **arguments)

        return AsyncCursorFloor(connect, _MY_CREATE, _MY_ADD, _MY_TAKE, _MY_GIVE)

    return open_it


def open_aiosqlite(site: Site) -> AsyncSession:
    async def connect() -> Any:
        connection = await load("aiosqlite").connect(site.path, isolation_level=None, timeout=30)
        await connection.execute("PRAGMA journal_mode=WAL")
        return connection

    return AsyncCursorFloor(connect, *_sqlite())


class AsyncpgFloor(AsyncSession):
    def __init__(self, site: Site) -> None:
        self.arguments = site.arguments
        self.connection: Any = None
        self.known: set[str] = set()
        self.token = ""

    async def start(self) -> None:
        self.connection = await load("asyncpg").connect(**self.arguments)
        await self.connection.execute(f"SET client_min_messages = warning; {_PG_CREATE}")

    async def take(self, name: str) -> bool:
        if name not in self.known:
            await self.connection.execute(_numbered(_PG_ADD), name)
            self.known.add(name)
        self.token = new_token()
        return bool(await self.connection.execute(_numbered(_PG_TAKE), self.token, name) == "UPDATE 1")

    async def give(self, name: str) -> None:
        await self.connection.execute(_numbered(_PG_GIVE), name, self.token)

    async def close(self) -> None:
        await self.connection.close()


_NUMBERED = {text: text.replace("%s", "$1", 1).replace("%s", "$2", 1) for text in (_PG_ADD, _PG_TAKE, _PG_GIVE)}


def _numbered(text: str) -> str:
    return _NUMBERED[text]


# MongoDB


def _taking(name: str, token: str) -> tuple[dict[str, Any], dict[str, Any]]:
    now = datetime.now(UTC)
    return {"_id": name, "ends": {"$lte": now}}, {"$set": {"ends": now + LEASE, "owner": token}}


def _giving(name: str, token: str) -> tuple[dict[str, Any], dict[str, Any]]:
    return {"_id": name, "owner": token}, {"$set": {"ends": datetime.now(UTC)}}


_BEGIN = {"$setOnInsert": {"ends": datetime(2000, 1, 1, tzinfo=UTC)}}


class MongoFloor(Session):
    def __init__(self, site: Site) -> None:
        self.client = load("pymongo").MongoClient(site.url())
        self.collection = self.client[site.database][TABLE]
        self.known: set[str] = set()
        self.token = ""

    def expect(self, names: Iterable[str]) -> None:
        self.known.update(names)

    def take(self, name: str) -> bool:
        if name not in self.known:
            self.collection.update_one({"_id": name}, _BEGIN, upsert=True)
            self.known.add(name)
        self.token = new_token()
        return self.collection.find_one_and_update(*_taking(name, self.token)) is not None

    def give(self, name: str) -> None:
        self.collection.find_one_and_update(*_giving(name, self.token))

    def close(self) -> None:
        self.client.close()


class AsyncMongoFloor(AsyncSession):
    def __init__(self, site: Site) -> None:
        self.client = load("pymongo").AsyncMongoClient(site.url())
        self.collection = self.client[site.database][TABLE]
        self.known: set[str] = set()
        self.token = ""

    async def take(self, name: str) -> bool:
        if name not in self.known:
            await self.collection.update_one({"_id": name}, _BEGIN, upsert=True)
            self.known.add(name)
        self.token = new_token()
        return await self.collection.find_one_and_update(*_taking(name, self.token)) is not None

    async def give(self, name: str) -> None:
        await self.collection.find_one_and_update(*_giving(name, self.token))

    async def close(self) -> None:
        await self.client.close()


# etcd


def _range(name: str) -> tuple[str, dict[str, Any]]:
    return "/v3/kv/range", {"key": _in_base64(f"/{TABLE}/{name}")}


def _put(name: str, version: str, ends: float, owner: str) -> tuple[str, dict[str, Any]]:
    """Return a put that needs this version of the key."""
    key = _in_base64(f"/{TABLE}/{name}")
    put = {"request_put": {"key": key, "value": _in_base64(json.dumps({"ends": ends, "owner": owner}))}}
    compare = {"key": key, "target": "MOD", "result": "EQUAL", "mod_revision": version}
    return "/v3/kv/txn", {"compare": [compare], "success": [put]}


def _in_base64(text: str) -> str:
    return b64encode(text.encode()).decode()


def _free_version(reply: dict[str, Any]) -> str | None:
    """Return the version of an expired lease, "0" without a record, or None for a held lease."""
    for pair in reply.get("kvs", ()):
        is_held = json.loads(b64decode(pair["value"]))["ends"] > time.time()
        return None if is_held else str(pair["mod_revision"])
    return "0"


class EtcdFloor(Session):
    """httpx alone. Our provider uses it, too."""

    def __init__(self, site: Site) -> None:
        host, port = site.address
        self.client = load("httpx").Client(base_url=f"http://{host}:{port}")
        self.version, self.token = "", ""

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        reply: dict[str, Any] = self.client.post(path, json=body).json()
        return reply

    def take(self, name: str) -> bool:
        version = _free_version(self.post(*_range(name)))
        if version is None:
            return False
        self.token = new_token()
        reply = self.post(*_put(name, version, time.time() + SECONDS, self.token))
        self.version = reply["header"]["revision"]
        return bool(reply.get("succeeded"))

    def give(self, name: str) -> None:
        self.post(*_put(name, self.version, 0.0, self.token))

    def close(self) -> None:
        self.client.close()


class AsyncEtcdFloor(AsyncSession):
    def __init__(self, site: Site) -> None:
        host, port = site.address
        self.client = load("httpx").AsyncClient(base_url=f"http://{host}:{port}")
        self.version, self.token = "", ""

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        reply: dict[str, Any] = (await self.client.post(path, json=body)).json()
        return reply

    async def take(self, name: str) -> bool:
        version = _free_version(await self.post(*_range(name)))
        if version is None:
            return False
        self.token = new_token()
        reply = await self.post(*_put(name, version, time.time() + SECONDS, self.token))
        self.version = reply["header"]["revision"]
        return bool(reply.get("succeeded"))

    async def give(self, name: str) -> None:
        await self.post(*_put(name, self.version, 0.0, self.token))

    async def close(self) -> None:
        await self.client.aclose()


# DynamoDB


def _client_arguments(site: Site) -> dict[str, Any]:
    return {"service_name": site.store, "region_name": REGION, "endpoint_url": "http://{}:{}".format(*site.address)}


def _taken(site: Site, name: str, token: str) -> dict[str, Any]:
    now = time.time()
    values = {":ends": {"N": str(now + SECONDS)}, ":owner": {"S": token}, ":now": {"N": str(now)}}
    return {
        "TableName": site.database,
        "Key": {"_id": {"S": f"{TABLE}.{name}"}},
        "UpdateExpression": "SET ends = :ends, holder = :owner",
        "ConditionExpression": "attribute_not_exists(ends) OR ends <= :now",
        "ExpressionAttributeValues": values,
    }


def _given(site: Site, name: str, token: str) -> dict[str, Any]:
    return {
        "TableName": site.database,
        "Key": {"_id": {"S": f"{TABLE}.{name}"}},
        "UpdateExpression": "SET ends = :zero",
        "ConditionExpression": "holder = :owner",
        "ExpressionAttributeValues": {":zero": {"N": "0"}, ":owner": {"S": token}},
    }


class DynamoDBFloor(Session):
    """boto3 with its defaults."""

    def __init__(self, site: Site) -> None:
        self.site, self.token = site, ""
        self.client = load("boto3").client(**_client_arguments(site))

    def take(self, name: str) -> bool:
        self.token = new_token()
        try:
            self.client.update_item(**_taken(self.site, name, self.token))
        except self.client.exceptions.ConditionalCheckFailedException:
            return False
        return True

    def give(self, name: str) -> None:
        self.client.update_item(**_given(self.site, name, self.token))

    def close(self) -> None:
        self.client.close()


class AsyncDynamoDBFloor(AsyncSession):
    def __init__(self, site: Site) -> None:
        self.site, self.token = site, ""
        self.opening = load("aiobotocore.session").get_session().create_client(**_client_arguments(site))
        self.client: Any = None

    async def take(self, name: str) -> bool:
        if self.client is None:
            self.client = await self.opening.__aenter__()
        self.token = new_token()
        try:
            await self.client.update_item(**_taken(self.site, name, self.token))
        except self.client.exceptions.ConditionalCheckFailedException:
            return False
        return True

    async def give(self, name: str) -> None:
        await self.client.update_item(**_given(self.site, name, self.token))

    async def close(self) -> None:
        if self.client is not None:
            await self.opening.__aexit__(None, None, None)


# S3


def _object(name: str) -> dict[str, str]:
    return {"Bucket": BUCKET, "Key": f"{TABLE}/{name}"}


def _content(ends: float, owner: str) -> bytes:
    return json.dumps({"ends": ends, "owner": owner}).encode()


class S3Floor(Session):
    """boto3 with its defaults: read an object, and write it if it has not changed."""

    def __init__(self, site: Site) -> None:
        self.client = load("boto3").client(**_client_arguments(site))
        self.version, self.token = "", ""

    def take(self, name: str) -> bool:
        condition = {"IfNoneMatch": "*"}
        try:
            found = self.client.get_object(**_object(name))
            if json.loads(found["Body"].read())["ends"] > time.time():
                return False
            condition = {"IfMatch": found["ETag"]}
        except self.client.exceptions.NoSuchKey:
            pass
        self.token = new_token()
        body = _content(time.time() + SECONDS, self.token)
        try:
            self.version = self.client.put_object(**_object(name), Body=body, **condition)["ETag"]
        except self.client.exceptions.ClientError:
            return False
        return True

    def give(self, name: str) -> None:
        self.client.put_object(**_object(name), Body=_content(0.0, self.token), IfMatch=self.version)

    def close(self) -> None:
        self.client.close()


class AsyncS3Floor(AsyncSession):
    def __init__(self, site: Site) -> None:
        self.opening = load("aiobotocore.session").get_session().create_client(**_client_arguments(site))
        self.client: Any = None
        self.version, self.token = "", ""

    async def take(self, name: str) -> bool:
        if self.client is None:
            self.client = await self.opening.__aenter__()
        condition = {"IfNoneMatch": "*"}
        try:
            found = await self.client.get_object(**_object(name))
            async with found["Body"] as body:
                if json.loads(await body.read())["ends"] > time.time():
                    return False
            condition = {"IfMatch": found["ETag"]}
        except self.client.exceptions.NoSuchKey:
            pass
        self.token = new_token()
        content = _content(time.time() + SECONDS, self.token)
        try:
            self.version = (await self.client.put_object(**_object(name), Body=content, **condition))["ETag"]
        except self.client.exceptions.ClientError:
            return False
        return True

    async def give(self, name: str) -> None:
        await self.client.put_object(**_object(name), Body=_content(0.0, self.token), IfMatch=self.version)

    async def close(self) -> None:
        if self.client is not None:
            await self.opening.__aexit__(None, None, None)


# Kubernetes


def _tls(site: Site) -> dict[str, Any]:
    """Return TLS options for an httpx client."""
    context = ssl.create_default_context(cafile=f"{site.directory}/authority.crt")
    context.load_cert_chain(f"{site.directory}/client.crt", f"{site.directory}/client.key")
    return {"base_url": "https://{}:{}{}".format(*site.address, _LEASES), "verify": context}


_LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{TABLE.replace('_', '-')}/leases"


def _lease(name: str, found: dict[str, Any], owner: str, seconds: int) -> dict[str, Any]:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    spec = {"holderIdentity": owner, "leaseDurationSeconds": seconds, "acquireTime": now, "renewTime": now}
    metadata = {"name": name, "resourceVersion": found["metadata"]["resourceVersion"] if found else None}
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}


def _is_held(lease: dict[str, Any]) -> bool:
    spec = lease["spec"]
    age = datetime.now(UTC) - datetime.fromisoformat(spec["renewTime"])
    return bool(spec["holderIdentity"]) and age.total_seconds() < spec["leaseDurationSeconds"]


class KubernetesFloor(Session):
    """httpx alone. Our provider uses it, too."""

    def __init__(self, site: Site) -> None:
        self.client = load("httpx").Client(**_tls(site))
        self.lease: dict[str, Any] = {}

    def take(self, name: str) -> bool:
        found = self.client.get(f"/{name}")
        lease: dict[str, Any] = found.json() if found.is_success else {}
        if lease and _is_held(lease):
            return False
        wanted = _lease(name, lease, new_token(), SECONDS)
        written = self.client.put(f"/{name}", json=wanted) if lease else self.client.post("", json=wanted)
        self.lease = written.json()
        return bool(written.is_success)

    def give(self, name: str) -> None:
        self.client.put(f"/{name}", json=_lease(name, self.lease, "", 1))

    def close(self) -> None:
        self.client.close()


class AsyncKubernetesFloor(AsyncSession):
    def __init__(self, site: Site) -> None:
        self.client = load("httpx").AsyncClient(**_tls(site))
        self.lease: dict[str, Any] = {}

    async def take(self, name: str) -> bool:
        found = await self.client.get(f"/{name}")
        lease: dict[str, Any] = found.json() if found.is_success else {}
        if lease and _is_held(lease):
            return False
        wanted = _lease(name, lease, new_token(), SECONDS)
        sending = self.client.put(f"/{name}", json=wanted) if lease else self.client.post("", json=wanted)
        written = await sending
        self.lease = written.json()
        return bool(written.is_success)

    async def give(self, name: str) -> None:
        await self.client.put(f"/{name}", json=_lease(name, self.lease, "", 1))

    async def close(self) -> None:
        await self.client.aclose()


FLOORS = [
    Contender("redis", "floor", "floor", RedisFloor, "redis"),
    Contender("redis", "floor", "floor", AsyncRedisFloor, "redis", is_async=True),
    Contender("postgres", "floor", "floor", open_psycopg, "psycopg"),
    Contender("postgres", "floor", "floor", AsyncpgFloor, "asyncpg", is_async=True),
    Contender(
        "postgres", "floor (psycopg)", "floor", open_psycopg_async, "psycopg", floor="floor (psycopg)", is_async=True
    ),
    Contender("mariadb", "floor", "floor", open_pymysql, "PyMySQL"),
    Contender("mariadb", "floor", "floor", open_mysql_async("asyncmy"), "asyncmy", is_async=True),
    Contender("mysql", "floor", "floor", open_pymysql, "PyMySQL"),
    Contender("mysql", "floor", "floor", open_mysql_async("asyncmy"), "asyncmy", is_async=True),
    Contender("sqlite", "floor", "floor", open_sqlite3),
    Contender("sqlite", "floor", "floor", open_aiosqlite, "aiosqlite", is_async=True),
    Contender("mongodb", "floor", "floor", MongoFloor, "pymongo"),
    Contender("mongodb", "floor", "floor", AsyncMongoFloor, "pymongo", is_async=True),
    Contender("dynamodb", "floor", "floor", DynamoDBFloor, "boto3"),
    Contender("dynamodb", "floor", "floor", AsyncDynamoDBFloor, "aiobotocore", is_async=True),
    Contender("s3", "floor", "floor", S3Floor, "boto3"),
    Contender("s3", "floor", "floor", AsyncS3Floor, "aiobotocore", is_async=True),
    Contender("etcd", "floor", "floor", EtcdFloor, "httpx"),
    Contender("etcd", "floor", "floor", AsyncEtcdFloor, "httpx", is_async=True),
    Contender("kubernetes", "floor", "floor", KubernetesFloor, "httpx"),
    Contender("kubernetes", "floor", "floor", AsyncKubernetesFloor, "httpx", is_async=True),
]
