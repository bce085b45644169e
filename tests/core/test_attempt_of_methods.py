# Calls without a type checker; the types are tested in tests/core/typing.
# mypy: disable-error-code="arg-type, call-arg, union-attr, unreachable"
"""``.attempt`` is bound like its method, and a guarded method stays a method."""

import abc
import asyncio
import copy
import dataclasses
import enum
import functools
import inspect
import pickle
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from apscheduler.util import obj_to_ref, ref_to_obj

from shedlock_py import Executed, InMemoryLockProvider, LockRequest, Skipped, scheduler_lock


def traced(function: Any) -> Any:
    """A foreign decorator that keeps the function it wraps."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


class Service:
    def __init__(self, tenant: str = "acme") -> None:
        self.tenant = tenant

    @scheduler_lock("method", "1m")
    def method(self, number: int = 0) -> tuple[str, int]:
        """A method."""
        return self.tenant, number

    @scheduler_lock("async-method", "1m")
    async def async_method(self, number: int = 0) -> tuple[str, int]:
        return self.tenant, number

    @traced
    @scheduler_lock("traced", "1m")
    def traced_method(self, number: int = 0) -> tuple[str, int]:
        return self.tenant, number

    @scheduler_lock("per-{self.tenant}-{number}", "1m")
    def per_tenant(self, number: int = 0) -> tuple[str, int]:
        return self.tenant, number

    @staticmethod
    @scheduler_lock("static", "1m")
    def static(number: int = 0) -> int:
        return number

    @scheduler_lock("static-other-order", "1m")
    @staticmethod
    def static_other_order(number: int = 0) -> int:
        return number

    @classmethod
    @scheduler_lock("class", "1m")
    def of_class(cls, number: int = 0) -> tuple[type, int]:
        return cls, number

    @scheduler_lock("class-other-order", "1m")
    @classmethod
    def of_class_other_order(cls, number: int = 0) -> tuple[type, int]:
        return cls, number

    class Inner:
        @scheduler_lock("inner", "1m")
        def method(self, number: int = 0) -> tuple[str, int]:
            return type(self).__name__, number

    alias = method


class Special(Service):
    @scheduler_lock("special", "1m")
    def method(self, number: int = 0) -> tuple[str, int]:
        result = super().method.attempt(number)
        assert isinstance(result, Executed)
        tenant, value = result.value
        return f"special {tenant}", value


service = Service()
special = Special("b")


@pytest.mark.parametrize(
    ("method", "arguments", "name", "value"),
    [
        (lambda: service.method, (7,), "method", ("acme", 7)),
        (lambda: Service.method, (service, 7), "method", ("acme", 7)),
        (lambda: service.alias, (7,), "method", ("acme", 7)),
        (lambda: service.traced_method, (7,), "traced", ("acme", 7)),
        (lambda: service.per_tenant, (7,), "per-acme-7", ("acme", 7)),
        (lambda: Service.Inner().method, (7,), "inner", ("Inner", 7)),
        (lambda: special.method, (7,), "special", ("special b", 7)),
        (lambda: special.traced_method, (7,), "traced", ("b", 7)),
        (lambda: Service.static, (7,), "static", 7),
        (lambda: service.static, (7,), "static", 7),
        (lambda: Service.static_other_order, (7,), "static-other-order", 7),
        (lambda: Service.of_class, (7,), "class", (Service, 7)),
        (lambda: service.of_class, (7,), "class", (Service, 7)),
        (lambda: special.of_class, (7,), "class", (Special, 7)),
        (lambda: special.of_class_other_order, (7,), "class-other-order", (Special, 7)),
    ],
)
def test_a_method_and_its_attempt_are_bound_alike(
    provider: InMemoryLockProvider, method: Callable[[], Any], arguments: tuple[Any, ...], name: str, value: object
) -> None:
    assert method()(*arguments) == value
    result = method().attempt(*arguments)
    assert isinstance(result, Executed)
    assert result.value == value
    provider.acquire(LockRequest(name, "10m"))
    assert method()(*arguments) is None
    assert method().attempt(*arguments) == Skipped(name)


@pytest.mark.anyio
async def test_of_an_async_method(provider: InMemoryLockProvider) -> None:
    result = await service.async_method.attempt(7)
    assert isinstance(result, Executed)
    assert result.value == ("acme", 7)
    result = await Service.async_method.attempt(service, 7)
    assert isinstance(result, Executed)
    assert await service.async_method(7) == ("acme", 7)
    assert inspect.iscoroutinefunction(service.async_method)
    if sys.version_info < (3, 14):  # deprecated from then on
        assert asyncio.iscoroutinefunction(service.async_method)
    assert not inspect.iscoroutinefunction(service.method)


def test_of_a_class_in_a_function(provider: InMemoryLockProvider) -> None:
    class Local:
        @scheduler_lock("local", "1m")
        def method(self, number: int = 0) -> int:
            return number

        @classmethod
        @scheduler_lock("local-class", "1m")
        def of_class(cls) -> str:
            return cls.__name__

    assert Local().method.attempt(7).value == 7
    assert Local.of_class.attempt().value == "Local"
    assert Local().method(3) == 3
    assert [name for name in vars(Local) if "shedlock" in name] == []


def test_of_classes_that_are_made_in_other_ways(provider: InMemoryLockProvider) -> None:
    @dataclasses.dataclass(frozen=True, slots=True)
    class Data:
        number: int = 1

        @scheduler_lock("data", "1m")
        def method(self) -> int:
            return self.number

    class Kind(enum.Enum):
        ONE = 1

        @scheduler_lock("kind", "1m")
        def method(self) -> int:
            return int(self.value)

    class Base(abc.ABC):
        @abc.abstractmethod
        @scheduler_lock("base", "1m")
        def method(self) -> int: ...

    class Derived(Base):
        @scheduler_lock("base", "1m")
        def method(self) -> int:
            return 3

    assert Data().method.attempt().value == 1
    assert Kind.ONE.method.attempt().value == 1
    assert [kind.name for kind in Kind] == ["ONE"]
    assert Derived().method.attempt().value == 3
    with pytest.raises(TypeError, match="abstract"):
        Base()  # type: ignore[abstract]  # on purpose


def test_wrong_arguments_name_the_method_and_take_no_lock(provider: InMemoryLockProvider) -> None:
    for call in (lambda: service.method.attempt(1, 2), lambda: service.method(1, 2), lambda: Service.method.attempt()):
        with pytest.raises(TypeError, match=r"Service\.method"):
            call()
    assert provider.records() == []


class TestItIsStillAMethod:
    def test_a_function_of_the_class(self) -> None:
        assert inspect.isfunction(Service.method)
        assert inspect.isfunction(Service.static)
        assert Service.method is Service.alias
        assert pickle.loads(pickle.dumps(Service.method)) is Service.method
        assert {"method", "traced_method"} <= dict(inspect.getmembers(Service, inspect.isfunction)).keys()

    def test_a_bound_method(self, provider: InMemoryLockProvider) -> None:
        method: Any = service.method
        assert inspect.ismethod(method)
        assert isinstance(method, types.MethodType)
        assert method.__self__ is service
        assert method.__func__ is Service.method
        assert (method.__name__, method.__qualname__) == ("method", "Service.method")
        assert (method.__module__, method.__doc__) == (__name__, "A method.")
        assert list(inspect.signature(method).parameters) == ["number"]
        assert method == service.method == types.MethodType(Service.method, service)
        assert types.MethodType(Service.method, service) == method
        assert method != Service("b").method
        assert len({method, service.method, types.MethodType(Service.method, service)}) == 1
        assert repr(method) == repr(types.MethodType(Service.method, service))
        assert getattr(method, "__shedlock__").name == "method"  # noqa: B009 (mypy takes it for a MethodType)
        assert functools.partial(method, 7)() == ("acme", 7)

    def test_a_weak_reference_to_it_lives_as_long_as_the_object(self, provider: InMemoryLockProvider) -> None:
        here = Service("weak")
        reference: Any = weakref.WeakMethod(here.method)
        assert reference()(7) == ("weak", 7)
        assert reference().attempt(7).value == ("weak", 7)
        del here
        assert reference() is None

    def test_a_copied_or_pickled_method_keeps_its_attempt(self, provider: InMemoryLockProvider) -> None:
        for copied in (pickle.loads(pickle.dumps(service.method)), copy.copy(service.method)):
            assert copied.attempt(7).value == ("acme", 7)
        assert pickle.loads(pickle.dumps(Special.of_class)).attempt(7).value == (Special, 7)

    def test_apscheduler_finds_it_again(self, provider: InMemoryLockProvider) -> None:
        for function in (Service.static, Service.of_class, Special.of_class):
            assert ref_to_obj(obj_to_ref(function)) == function
        assert ref_to_obj(obj_to_ref(service.method)) is Service.method

    def test_the_class_attribute_passes_for_what_was_written(self, provider: InMemoryLockProvider) -> None:
        attributes: Any = vars(Service)
        assert isinstance(attributes["method"], types.FunctionType)
        assert isinstance(attributes["of_class"], classmethod)
        assert attributes["method"](service, 7) == ("acme", 7)
        assert {name: kind for name, kind, *_ in inspect.classify_class_attrs(Service)}["of_class"] == "class method"

        class Reused:
            method = attributes["method"]
            tenant = "reused"

        assert Reused().method.attempt(7).value == ("reused", 7)
