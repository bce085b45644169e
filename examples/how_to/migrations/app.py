"""One replica migrates the database, and all replicas start with it: uvicorn app:app"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from alembic import command
from alembic.config import Config
from fastapi import FastAPI

from shedlock_py import configure, run_once_async

configure(os.environ.get("SHEDLOCK_STORE", "sqlite:///locks.db"), create_schema=True)


async def migrate() -> None:
    await asyncio.to_thread(command.upgrade, Config("alembic.ini"), "head")


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    await run_once_async("migrate-v42", migrate, wait="5m")
    yield


app = FastAPI(lifespan=lifespan)
