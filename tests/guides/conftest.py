from collections.abc import Iterator

import pytest

from tests.support.database import DatabaseServer

DATABASE = "guides"


@pytest.fixture(params=["postgresql+psycopg", "mariadb+pymysql"])
def server_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a new database on a server of each kind."""
    fixture = "postgres_server" if request.param.startswith("postgres") else "mariadb_server"
    server: DatabaseServer = request.getfixturevalue(fixture)
    with server.new_database(DATABASE):
        yield server.url(request.param, DATABASE)
