"""Lock names that are filled from the arguments of each call."""

import enum
import functools
import string
import sys
import threading
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from shedlock_py import ConfigurationError, InMemoryLockProvider, current_lease, scheduler_lock
from shedlock_py.guard.spec import declared_lock_names


def lock_name(*_: object, **__: object) -> str:
    lease = current_lease()
    assert lease
    return lease.name


def guarded(template: str) -> Any:
    @scheduler_lock(template, "1m")
    def job(tenant: Any, number: int = 7, *args: Any, flag: bool = False, **kwargs: Any) -> str:
        return lock_name()

    return job


@pytest.fixture(autouse=True)
def _configured(provider: InMemoryLockProvider) -> None:
    """Configure a store for every test."""


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("sync-{tenant}", "sync-acme"),
        ("{tenant}", "acme"),
        ("{tenant}-{number}", "acme-7"),
        ("{tenant!r}", "'acme'"),
        ("{number:04}", "0007"),
        ("{tenant}-{flag}", "acme-False"),
        ("{{literal}}-{tenant}", "{literal}-acme"),
        ("{{literal}}", "{literal}"),
    ],
)
def test_a_template_is_filled_from_the_arguments_of_the_call(
    provider: InMemoryLockProvider, template: str, name: str
) -> None:
    assert guarded(template)("acme") == name
    assert guarded(template)(tenant="acme") == name
    assert guarded(template)(number=7, tenant="acme") == name
    assert [record.name for record in provider.records()] == [name]


def test_attributes_and_items() -> None:
    tenant = SimpleNamespace(id=5, names=["a", "b"])
    assert guarded("sync-{tenant.id}")(tenant) == "sync-5"
    assert guarded("sync-{tenant.names[1]}")(tenant) == "sync-b"
    assert guarded("sync-{tenant[id]}")({"id": 5}) == "sync-5"
    assert guarded("sync-{args[0]}-{kwargs[x]}")("acme", 1, "first", x="y") == "sync-first-y"


def test_the_template_of_a_method_can_use_self_and_cls() -> None:
    class Service:
        tenant = "acme"

        @scheduler_lock("sync-{self.tenant}-{number}", "1m")
        def sync(self, number: int) -> str:
            return lock_name()

        @classmethod
        @scheduler_lock("sync-{cls.__name__}", "1m")
        def of_class(cls) -> str:
            return lock_name()

        @staticmethod
        @scheduler_lock("sync-{number}", "1m")
        def static(number: int) -> str:
            return lock_name()

    assert Service().sync(3) == "sync-acme-3"
    assert Service.of_class() == "sync-Service"
    static: Any = Service.static
    assert static(4) == "sync-4"


def test_a_partial_fills_the_template_with_what_it_was_given() -> None:
    def sync(tenant: str, number: int = 1) -> str:
        return lock_name()

    with_keyword = functools.partial(sync, number=2)
    assert scheduler_lock("sync-{tenant}-{number}", "1m")(with_keyword)("acme") == "sync-acme-2"
    with_positional = functools.partial(sync, "acme")
    assert scheduler_lock("sync-{number}", "1m")(with_positional)() == "sync-1"


@pytest.mark.parametrize("template", ["sync-{customer}", "sync-{tenant}-{customer.id}", "{customer[0]}"])
def test_a_field_that_is_no_parameter_is_refused_at_decoration(template: str) -> None:
    with pytest.raises(ConfigurationError, match=r"\{customer\}") as caught:
        guarded(template)
    assert "tenant, number, args, flag, kwargs" in str(caught.value)
    with pytest.raises(ConfigurationError, match="its parameters are: none"):
        scheduler_lock(template, "1m")(lambda: None)


@pytest.mark.parametrize("template", ["{", "}", "sync-{tenant", "sync-{}", "sync-{0}", "sync-{ tenant }", "{tenant!x}"])
def test_templates_that_are_none(template: str) -> None:
    with pytest.raises(ConfigurationError, match="lock name"):
        guarded(template)("acme")


@pytest.mark.parametrize(
    ("template", "argument", "words"),
    [
        ("{tenant}", "", "empty or blank"),
        ("{tenant}", "x" * 65, "65 characters"),
        ("{tenant}", "a\nb", "control character"),
        *(
            (template, SimpleNamespace(names=[]), "cannot be filled")
            for template in ("{tenant.id}", "{tenant[id]}", "{tenant:%d.%q}", "{tenant.names[9]}")
        ),
    ],
)
def test_an_argument_that_makes_no_name_is_refused_at_the_call(
    provider: InMemoryLockProvider, template: str, argument: object, words: str
) -> None:
    job = guarded(template)
    with pytest.raises(ConfigurationError, match=words):
        job(argument)
    assert provider.records() == []


class Bare:
    """An object with the default ``repr``."""

    def method(self) -> None: ...


class Shown(Bare):
    id = 5

    def __str__(self) -> str:
        return "shown"


class Kind(enum.Enum):
    ONE = 1


class Sensor:
    def __repr__(self) -> str:
        return "Sensor at 0x40"


@pytest.mark.parametrize(
    ("template", "argument", "field"),
    [
        ("job-{tenant}", Bare(), "{tenant}"),
        ("job-{tenant!r}", Bare(), "{tenant}"),
        ("job-{tenant!r:>80}", Bare(), "{tenant}"),
        ("job-{tenant!r}", Shown(), "{tenant}"),
        ("job-{tenant.owner}", SimpleNamespace(owner=Bare()), "{tenant.owner}"),
        ("job-{tenant[x]}", {"x": Bare()}, "{tenant[x]}"),
        ("job-{tenant}", [Bare()], "{tenant}"),
        ("job-{tenant}", Bare().method, "{tenant}"),
        ("job-{tenant.method}", Bare(), "{tenant.method}"),
        ("job-{tenant}", lambda: None, "{tenant}"),
        ("job-{tenant}", (number for number in range(3)), "{tenant}"),
        ("job-{tenant}", string, "{tenant}"),
        ("job-{kwargs}", Bare(), "{kwargs}"),
    ],
)
def test_i1_an_object_whose_text_is_another_one_in_each_process_is_refused(
    provider: InMemoryLockProvider, template: str, argument: object, field: str
) -> None:
    """Otherwise three processes have three locks, and all run."""
    options = {"bare": argument} if "kwargs" in template else {}
    with pytest.raises(ConfigurationError, match="differs in each process") as caught:
        guarded(template)(argument, **options)
    assert f"the text of {field}" in str(caught.value)
    assert f"{field[:-1]}.id}}" in str(caught.value)
    assert provider.records() == []


class Customer(NamedTuple):
    id: int
    tags: set[str]

    def __str__(self) -> str:
        return f"customer {self.id}"


class Tags(frozenset[str]):
    def __str__(self) -> str:
        return ",".join(sorted(self))


@pytest.mark.parametrize(
    ("template", "argument"),
    [
        ("job-{tenant}", {"a", "b"}),
        ("job-{tenant!r}", frozenset("ab")),
        ("job-{tenant.tags}", SimpleNamespace(tags={"a", "b"})),
        ("job-{tenant}", ["x", ({"a", "b"},)]),
        ("job-{tenant}", {"x": {"a", "b"}}),
        ("job-{tenant}", {frozenset("ab"): "x"}),
        ("job-{args}", None),
        ("job-{kwargs}", None),
    ],
)
def test_i1_a_set_whose_order_is_another_one_in_each_process_is_refused(
    provider: InMemoryLockProvider, template: str, argument: object
) -> None:
    with pytest.raises(ConfigurationError, match=r"contains a set\. Its order differs in each process") as caught:
        guarded(template)(argument, 7, {"a", "b"}, tags={"a", "b"})
    assert "sorted(" in str(caught.value)
    assert provider.records() == []


@pytest.mark.parametrize(
    ("template", "argument", "name"),
    [
        ("{tenant}", Tags("ba"), "a,b"),
        ("{tenant}", Customer(7, {"a", "b"}), "customer 7"),
        ("{tenant}", sorted({"b", "a"}), "['a', 'b']"),
        ("{tenant}", Shown(), "shown"),
        ("{tenant.id}", Shown(), "5"),
        ("{tenant}", Sensor(), "Sensor at 0x40"),
        ("{tenant}", Bare, f"<class '{__name__}.Bare'>"),
        ("{tenant.__name__}", Bare, "Bare"),
        ("{tenant}", "<app.Job object at 0x7f3a5c0d1e50>", "<app.Job object at 0x7f3a5c0d1e50>"),
        ("{tenant}", Kind.ONE, "Kind.ONE"),
        ("{tenant}", None, "None"),
    ],
)
def test_a_text_that_is_the_same_in_each_process_is_fine(template: str, argument: object, name: str) -> None:
    assert guarded(template)(argument) == name


@pytest.mark.parametrize(
    ("name", "words"),
    [
        *((name, "must be a string") for name in (5, None, b"job", ["job"])),
        *((name, "empty or blank") for name in ("", "\t")),
        ("x" * 65, "65 characters"),
        ("a\0", "control"),
    ],
)
def test_a_bad_name_is_refused_at_decoration(name: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        scheduler_lock(name, "1m")


def test_names_are_listed_while_another_thread_decorates() -> None:
    """An exporter of metrics does so while the application imports its jobs."""
    jobs: list[object] = []

    def decorate() -> None:
        for number in range(1000):
            jobs.append(guarded(f"job-{number}"))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        thread = threading.Thread(target=decorate)
        thread.start()
        while thread.is_alive():
            declared_lock_names()
    finally:
        sys.setswitchinterval(interval)
        thread.join()
    assert {f"job-{number}" for number in range(1000)} <= declared_lock_names()
