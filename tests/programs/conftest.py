from collections.abc import Iterator

import pytest

from tests.support.database import DatabaseServer

DATABASE = "guides"


@pytest.fixture(params=["postgresql+psycopg", "mariadb+pymysql", "mysql+pymysql"])
def server_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a new database on a server of each kind."""
    scheme = request.param.partition("+")[0].replace("postgresql", "postgres")
    server: DatabaseServer = request.getfixturevalue(f"{scheme}_server")
    with server.new_database(DATABASE):
        yield server.url(request.param, DATABASE)
