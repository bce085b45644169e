"""A job every two seconds, in one of four workers: uvicorn repeat:app --workers 4"""

import logging
import os

from fastapi import FastAPI

from shedlock_py.integrations.fastapi import lifespan, repeat_every

logging.basicConfig(format="%(process)d %(message)s")
logger = logging.getLogger("app")
logger.setLevel(logging.INFO)


@repeat_every(seconds=2, lock="clean-up", lock_at_most_for="1m")
async def clean_up() -> None:
    logger.info("cleaned up")


DATABASE_URL = os.environ.get("DATABASE_URL", "sqlite:///app.db")
app = FastAPI(lifespan=lifespan(DATABASE_URL, start=[clean_up]))
