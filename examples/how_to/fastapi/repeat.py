"""A job every two seconds, in one of four workers: uvicorn repeat:app --workers 4"""

import os

from fastapi import FastAPI

from shedlock_py import provider_from_url
from shedlock_py.integrations.fastapi import lifespan, repeat_every

provider = provider_from_url(os.environ.get("DATABASE_URL", "sqlite:///app.db"))


@repeat_every(seconds=2, lock="clean-up", lock_at_most_for="1m")
async def clean_up() -> None:
    print("cleaned up", flush=True)


app = FastAPI(lifespan=lifespan(provider, start=[clean_up]))
