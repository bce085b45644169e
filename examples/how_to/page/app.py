"""The page inside a FastAPI application: uvicorn app:app"""

import os

from fastapi import FastAPI

from shedlock_py import provider_from_url
from shedlock_py.integrations.fastapi import lifespan
from shedlock_py.page import page_app

provider = provider_from_url(os.environ.get("SHEDLOCK_STORE", "sqlite:///app.db?history=50"))

app = FastAPI(lifespan=lifespan(provider))
app.mount("/locks", page_app(provider, allow_changes=True, token=os.environ["SHEDLOCK_PAGE_TOKEN"]))
