"""A fork without Python's knowledge, like uWSGI's workers: ``python -m tests.support.forked_by_c WAYS URL NAME``.

It needs a process of its own, which calls :func:`prepare_for_c_forks` first.
"""

import asyncio
import os
import random
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from shedlock_py import LockRequest, async_provider_from_url, hold, provider_from_url
from shedlock_py.guard.heartbeat_plan import HeartbeatPlan
from shedlock_py.model.lease import Claim
from shedlock_py.model.waiting import random_share as election_random
from shedlock_py.testing.forks import in_child
from tests.support.forks import c_fork, prepare_for_c_forks


def use(provider: Any, name: str) -> None:
    lease = provider.acquire(LockRequest(name, "1m"))
    assert lease is not None
    assert provider.acquire(LockRequest(name, "1m")) is None
    assert provider.extend(lease, "2m") is lease
    assert provider.release(lease)


def on_both_sides(provider: Any, name: str) -> None:
    held = provider.acquire(LockRequest(name, "1m"))
    before = session(provider)

    def child() -> None:
        assert provider.acquire(LockRequest(name, "1m")) is None
        use(provider, f"{name}-child")
        assert session(provider) != before or before is None

    for work in (child, provider.close, child):
        in_child(work, c_fork)
        assert provider.extend(held, "2m") is held
        use(provider, f"{name}-parent")
        assert session(provider) == before, "the parent's connection must have survived"
    assert provider.release(held)


def session(provider: Any) -> object:
    dialect = getattr(provider.programs, "dialect", None)
    if dialect is None or dialect.name == "sqlite":
        return None
    # Each way imports only its own needs: clients take a second.
    from shedlock_py.providers.sqlalchemy.statements import SqlCommand, Statement
    from tests.stores.sql.stores import carry_out

    query = f"SELECT {'pg_backend_pid()' if dialect.name == 'postgresql' else 'connection_id()'}"
    [[number]] = carry_out(provider, SqlCommand(Statement(query, "rows"))).rows
    return number


def between_event_loops(url: str, name: str) -> None:
    inherited: Any = async_provider_from_url(url)

    async def main(provider: Any) -> None:
        lease = await provider.acquire(LockRequest(name, "1m"))
        assert lease is not None
        assert await provider.release(lease)
        await provider.close()

    asyncio.run(main(inherited))
    in_child(lambda: asyncio.run(main(inherited)), c_fork)
    in_child(lambda: asyncio.run(main(async_provider_from_url(url))), c_fork)
    asyncio.run(main(inherited))


def inside_a_block(url: str, name: str) -> None:
    provider = provider_from_url(url)
    block = hold(name, lock_at_most_for="1m", provider=provider)

    def child() -> None:
        block.__exit__(None, None, None)
        record = provider.record(name)
        assert record is not None
        assert record.is_held

    with block as lease:
        in_child(child, c_fork)
        record = provider.record(name)
        assert lease is not None
        assert record is not None
        assert record.locked_by == lease.locked_by
        assert record.is_held


def on_an_engine(url: str, **pool: int) -> tuple[Any, Any]:
    from sqlalchemy import create_engine

    from shedlock_py.providers.sqlalchemy import SqlAlchemyLockProvider

    engine = create_engine(url, **pool)
    return engine, SqlAlchemyLockProvider(engine)


def with_a_pool_of_the_childs(url: str, name: str) -> None:
    engine, provider = on_an_engine(url)
    provider.create_schema()
    use(provider, name)

    def child() -> None:
        engine.dispose(close=False)  # SQLAlchemy's advice for forks
        with engine.connect() as connection:
            connection.exec_driver_sql("SELECT 1")
            pool = engine.pool
            use(provider, f"{name}-child")
            assert engine.pool is pool
            connection.exec_driver_sql("SELECT 1")

    in_child(child, c_fork)
    use(provider, name)


def pause_of_a_quorum() -> float:
    """Return the seconds until a take-over tries again after a competing take-over prevented it."""
    from shedlock_py.providers.redis.quorum.quorum_programs import QuorumPrograms, Reading

    programs = QuorumPrograms(3, "", "1h")
    claim = Claim(LockRequest("job", "1m"), programs.clock)
    taking_over = programs.claim(claim, before=Reading(token=1, former={}, clocks=[]), force=True)
    next(taking_over)
    pause: Any = taking_over.send([0, 0, 0])  # the servers refuse
    return float(pause.seconds)


def jitter(url: str, name: str) -> None:
    """Check that the jitter differs between children."""
    reading, writing = os.pipe()

    def child() -> None:
        plan = HeartbeatPlan(timedelta(minutes=1), 0.0)
        plan.failed(timedelta(minutes=1), 0.0)
        numbers = (random.random(), election_random(), plan.due, pause_of_a_quorum())
        os.write(writing, " ".join(map(str, numbers)).encode() + b"\n")

    for _ in range(3):
        in_child(child, c_fork)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        columns = list(zip(*(line.split() for line in pipe), strict=True))
    # 1: Python leaves this one equal in each child
    assert [len(set(column)) for column in columns] == [1, 3, 3, 3], columns


WAYS: dict[str, Callable[[str, str], None]] = {
    "url": lambda url, name: on_both_sides(provider_from_url(url), name),
    "engine": lambda url, name: on_both_sides(on_an_engine(url, pool_size=1, max_overflow=0)[1], name),
    "pool": with_a_pool_of_the_childs,
    "asyncio": between_event_loops,
    "block": inside_a_block,
    "jitter": jitter,
}

if __name__ == "__main__":
    prepare_for_c_forks()
    ways, url, name = sys.argv[1:]
    if not url.startswith("memory:"):
        import tests.stores.sql.stores  # noqa: F401 (at once, before there are threads)
    for way in ways.split():
        WAYS[way](url, f"{name}-{way}")
