"""MongoDB through PyMongo, sync and async. Needs the extra ``mongodb``."""

import pymongo

from shedlock_py.runtime.versions import require

require("pymongo", pymongo.__version__)

from shedlock_py.providers.mongodb.mongo_provider import AsyncMongoLockProvider, MongoLockProvider

__all__ = ["AsyncMongoLockProvider", "MongoLockProvider"]
