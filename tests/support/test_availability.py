import pytest

from tests.support.availability import Product, database_server, redis_endpoint
from tests.support.database import ExternalServer
from tests.support.ports import bind_free_port
from tests.support.redis import ExternalRedis, RedisServer
from tests.support.servers import MariaDbServer, PostgresServer


@pytest.fixture(autouse=True)
def no_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    for product in ("POSTGRES", "MARIADB", "MYSQL", "REDIS"):
        monkeypatch.delenv(f"SHEDLOCK_TEST_{product}_URL", raising=False)


@pytest.mark.parametrize(("product", "server"), [("postgres", PostgresServer), ("mariadb", MariaDbServer)])
@pytest.mark.parametrize("in_ci", [False, True])
def test_a_missing_server_skips_here_and_fails_in_ci(
    monkeypatch: pytest.MonkeyPatch, product: Product, server: type[PostgresServer], in_ci: bool
) -> None:
    monkeypatch.setattr(server, "programs", ("no-such-program",))
    if in_ci:
        monkeypatch.setenv("CI", "true")
    outcome = pytest.fail.Exception if in_ci else pytest.skip.Exception
    with pytest.raises(outcome, match="not installed: no-such-program; run: make servers"), database_server(product):
        pass


def test_mysql_is_optional_and_says_how_to_get_it() -> None:
    with pytest.raises(pytest.skip.Exception, match="docker compose up -d --wait mysql"), database_server("mysql"):
        pass


@pytest.mark.parametrize("product", ["postgres", "mariadb", "mysql"])
def test_a_url_whose_server_does_not_answer_is_missing_too(monkeypatch: pytest.MonkeyPatch, product: Product) -> None:
    dialect = "postgresql" if product == "postgres" else "mysql"
    with bind_free_port() as nobody:
        url = f"{dialect}://u:s3cret-pw@127.0.0.1:{nobody.getsockname()[1]}/db"
        monkeypatch.setenv(f"SHEDLOCK_TEST_{product.upper()}_URL", url)
        with pytest.raises(pytest.skip.Exception, match="docker compose") as raised, database_server(product):
            pass
    assert "s3cret-pw" not in str(raised.value)


def test_a_url_names_the_server_with_any_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    with PostgresServer() as server:
        monkeypatch.setenv("SHEDLOCK_TEST_POSTGRES_URL", server.url("postgresql"))
        with database_server("postgres") as external:
            assert isinstance(external, ExternalServer)
            assert external.address == server.address
            assert external.url("postgresql+asyncpg", "other", via=("localhost", 1)) == (
                "postgresql+asyncpg://shedlock:s3cret-pw@localhost:1/other"
            )
            with pytest.raises(pytest.skip.Exception, match="SHEDLOCK_TEST_POSTGRES_URL"):
                external.pause()


@pytest.mark.parametrize("in_ci", [False, True])
def test_a_missing_redis_skips_here_and_fails_in_ci(monkeypatch: pytest.MonkeyPatch, in_ci: bool) -> None:
    monkeypatch.setattr(RedisServer, "programs", ("no-such-program",))
    if in_ci:
        monkeypatch.setenv("CI", "true")
    outcome = pytest.fail.Exception if in_ci else pytest.skip.Exception
    with pytest.raises(outcome, match="redis: not installed: no-such-program; run: make servers"), redis_endpoint():
        pass


def test_a_redis_url_that_does_not_answer_is_missing_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with bind_free_port() as nobody:
        monkeypatch.setenv("SHEDLOCK_TEST_REDIS_URL", f"redis://:s3cret-pw@127.0.0.1:{nobody.getsockname()[1]}/0")
        with pytest.raises(pytest.skip.Exception, match="docker compose up -d --wait redis") as raised:
            redis_endpoint().__enter__()
    assert "s3cret-pw" not in str(raised.value)


def test_a_redis_url_names_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    with RedisServer(config={"requirepass": "s3cret-pw"}) as server:
        monkeypatch.setenv("SHEDLOCK_TEST_REDIS_URL", server.url(2))
        with redis_endpoint() as external:
            assert isinstance(external, ExternalRedis)
            assert (external.address, external.url()) == (server.address, server.url(2))
            assert external.url(3, via=("localhost", 1)) == "redis://:s3cret-pw@localhost:1/3"
            with external.client() as theirs, server.client(2) as ours:
                theirs.set("name", "value")
                assert ours.get("name") == b"value"
            with pytest.raises(pytest.skip.Exception, match="SHEDLOCK_TEST_REDIS_URL"):
                external.pause()
