"""The page inside a FastAPI application: uvicorn app:app"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from shedlock_py import async_provider_from_url
from shedlock_py.page import page_app

provider = async_provider_from_url(os.environ.get("SHEDLOCK_STORE", "sqlite:///app.db?history=50"))


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    await provider.create_schema()
    yield


app = FastAPI(lifespan=lifespan)
app.mount("/locks", page_app(provider, allow_changes=True, token=os.environ["SHEDLOCK_PAGE_TOKEN"]))
