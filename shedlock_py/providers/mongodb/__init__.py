"""MongoDB through PyMongo, which is both sync and async. Needs the extra ``mongodb``."""

from shedlock_py.providers.mongodb.provider import AsyncMongoLockProvider, MongoLockProvider

__all__ = ["AsyncMongoLockProvider", "MongoLockProvider"]
