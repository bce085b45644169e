"""Invalid URLs are rejected at once, with helpful messages and without the password."""

import traceback

import pytest
from redis import ConnectionPool
from redis.asyncio import ConnectionPool as AsyncConnectionPool

from shedlock_py import ConfigurationError, async_provider_from_url, provider_from_url
from shedlock_py.providers.redis import AsyncRedisLockProvider, RedisLockProvider
from shedlock_py.providers.redis.urls import parse_url
from tests.support.locks import acquired
from tests.support.redis import RedisEndpoint

CLASSES = (RedisLockProvider, AsyncRedisLockProvider)

REFUSED = [
    ("", "the store URL is empty"),
    ("redis", "must specify one of"),
    ("http://:hunter2@h", "must specify one of"),
    ("redis+quorum://:hunter2@h", "must specify one of"),
    ("unix://:hunter2@?db=1", "no path"),
    ("unix://", "no path"),
    ("redis://:hunter2@h:port/0", "'port'"),
    ("redis://:hunter2@h:99999999/0", "(?i)port"),
    ("redis://:hunter2@[::1", "IPv6"),
    ("redis://:hunter2@h/jobs", "database is a number"),
    ("redis://:hunter2@h/0#jobs", "%23"),
    ("redis://:hunter2@h?db=x", "'db'"),
    ("redis://:hunter2@h?protocol=4", "protocol"),
    ("redis://:hunter2@h?socket_timeout=soon", "'socket_timeout'"),
    ("redis://:hunter2@h?socket_timeout=-1", "socket_timeout"),
    ("redis://:hunter2@h?socket_connect_timeout=nan", "socket_connect_timeout"),
    ("redis://:hunter2@h?socket_read_size=0", "socket_read_size"),
    ("redis://:hunter2@h?encoding=nonsense", "unknown encoding"),
    *((f"redis://:hunter2@h?max_connections={number}", "max_connections") for number in ("-1", "0", "x", "")),
    ("redis://:hunter2@h?timeout=soon", "timeout='soon' is not a duration"),
    ("redis://:hunter2@h?fire_time_tolerance=soon", "fire_time_tolerance='soon' is not a duration"),
    ("redis://:hunter2@h?nonsense", "'nonsense'"),
    ("redis://:hunter2@h?nonsense=1", "'nonsense'"),
    ("redis://:hunter2@h?password=hunter2&nonsense=1", "'nonsense'"),
    ("redis://:hunter2@h?ssl_cert_reqs=none", "'ssl_cert_reqs'"),  # only rediss:// has this option
    ("rediss://:hunter2@h?ssl_cert_reqs=maybe", "(?i)maybe"),
    ("rediss://:hunter2@h?ssl_nonsense=1", "'ssl_nonsense'"),
    # redis-py's message repeats the option's value; if the value is the password, it is not shown.
    ("rediss://:hunter2@h?ssl_cert_reqs=hunter2", r"\*\*\*"),
    ("rediss://:%68unter2@h?ssl_cert_reqs=hunter2", r"\*\*\*"),
    # These options are objects: redis-py would only much later notice that they are texts.
    *((f"redis://:hunter2@h?{option}=1", f"'{option}'") for option in ("retry", "retry_on_error", "cache_config")),
    *((f"redis://:hunter2@h?{option}=1", f"'{option}'") for option in ("event_dispatcher", "connection_class")),
]


@pytest.mark.parametrize(("url", "words"), REFUSED)
def test_urls_that_cannot_work(url: str, words: str) -> None:
    for provider_class in CLASSES:
        with pytest.raises(ConfigurationError, match=words) as refused:
            provider_class(url)
        text = "".join([repr(refused.value), *traceback.format_exception(refused.value)])
        assert "hunter2" not in text


@pytest.mark.parametrize("special", "/?#")
@pytest.mark.parametrize("url", ["redis://:hun{}ter2@h", "redis://u:hun{}ter2@h/1", "redis://u:h@un{}ter2@h?db=1"])
def test_passwords_that_need_escaping_are_not_taken_for_hosts(url: str, special: str) -> None:
    for provider_class in CLASSES:
        with pytest.raises(ConfigurationError, match=r"%2F for /, %3F for \?, %23 for #") as refused:
            provider_class(url.format(special))
        text = "".join([repr(refused.value), *traceback.format_exception(refused.value)])
        assert "hun" not in text
        assert "ter2" not in text


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("redis://u:hunter2@h", "h:6379/0"),
        ("redis://:hunter2@h:7/3", "h:7/3"),
        ("redis://h?db=3&password=hunter2", "h:6379/3"),
        ("redis://", "localhost:6379/0"),
        ("rediss://:hun%2Fter2@[::1]:7", "::1:7/0"),
        ("unix://:hunter2@/run/redis.sock?db=2", "unix:///run/redis.sock"),
        ("unix:///run/redis@6379/redis.sock", "unix:///run/redis@6379/redis.sock"),
        ("unix:///run/redis.sock?password=p@ss", "unix:///run/redis.sock"),
        ("redis://h?socket_timeout=0.5&max_connections=3&client_name=a@b&decode_responses=true", "h:6379/0"),
    ],
)
def test_urls_connect_at_first_use(url: str, place: str) -> None:
    for provider_class, from_url in zip(CLASSES, (provider_from_url, async_provider_from_url), strict=True):
        assert repr(provider_class(url)) == f"<{provider_class.__name__} at {place}>"
        assert isinstance(from_url(url), provider_class)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("rediss://h", True),
        ("rediss://h?ssl_cert_reqs=optional", True),
        ("rediss://h?ssl_check_hostname=false", False),
        ("rediss://h?ssl_cert_reqs=none", None),
        ("redis://h", None),
    ],
)
def test_a_certificate_must_name_its_host_also_before_redis_py_6(url: str, expected: bool | None) -> None:
    for pool_class in (ConnectionPool, AsyncConnectionPool):
        pool, _ = parse_url(url, pool_class, None)
        assert pool.connection_kwargs.get("ssl_check_hostname") is expected


def test_options_of_a_url_take_effect(redis_server: RedisEndpoint, name: str) -> None:
    url = f"{redis_server.url(1)}?client_name=jobs-{name}&protocol=2&decode_responses=true"
    provider = RedisLockProvider(url)
    assert provider.release(acquired(provider, name))
    with redis_server.client() as client:
        (connection,) = [each for each in client.client_list() if each["name"] == f"jobs-{name}"]
        assert connection["db"] == "1"
    provider.close()
    with redis_server.client(1) as client:
        client.delete(f"shedlock:{{{name}}}")
