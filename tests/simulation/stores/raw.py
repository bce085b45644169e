"""The stored form of the records, to compare a model store with the real store."""

from __future__ import annotations

import time
from typing import Any

import redis
from sqlalchemy import text

from tests.simulation.stores import ModelStore
from tests.support.stores import DynamoDBStore, EtcdStore, MongoStore, RedisStore, SqliteStore, Store

Raw = dict[str, dict[str, Any]]


def now_us() -> int:
    return time.time_ns() // 1000


def raw(store: Store) -> Raw:
    match store:
        case SqliteStore():
            with store.connect() as connection:
                rows = connection.execute(text("SELECT * FROM shedlock")).mappings()
                return {row["name"]: dict(row) for row in rows}
        case RedisStore():
            with redis.Redis.from_url(store.where()) as client:
                keys = client.keys(f"{store.options['key_prefix']}:*")
                return {key.decode(): {**_decoded(client.hgetall(key)), "lives": client.pttl(key)} for key in keys}
        case MongoStore():
            with store.server.connect() as client:
                documents = client[store.database][store.options["collection"]].find()
                return {document["_id"]: document for document in documents}
        case DynamoDBStore():
            return {item["_id"]["S"]: _untyped(item) for item in store.server.items(store.table)}
        case EtcdStore():
            return {}  # the programs see only records, which were compared after each operation
    raise TypeError(store)


def raw_of_model(name: str, model: ModelStore) -> Raw:
    snapshot: Any = model.snapshot()
    match name:
        case "sql":
            columns = ("name", "lock_until", "locked_at", "locked_by", "fencing_token", "last_fire_time")
            return {row[0]: dict(zip(columns, row, strict=True)) for row in snapshot}
        case "redis":
            now = now_us() // 1000
            return {key.decode(): {**_decoded(dict(fields)), "lives": at - now} for key, at, fields in snapshot}
        case "dynamodb":
            return {key: {name: value for name, (_, value) in fields} for key, fields in snapshot}
        case "cas":
            return {}
        case _:
            return {key: dict(fields) for key, fields in snapshot}


def _untyped(item: dict[str, Any]) -> dict[str, Any]:
    return {name: next(iter(typed.values())) for name, typed in item.items()}


def _decoded(fields: dict[bytes, bytes]) -> dict[str, Any]:
    return {key.decode(): value.decode() for key, value in fields.items()}
