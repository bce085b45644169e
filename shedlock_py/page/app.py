"""The page as an ASGI application. Its views are sync, and run in the page's own worker threads."""

from __future__ import annotations

import asyncio
import hmac
import threading
from collections.abc import Callable, Iterable
from typing import Any, cast
from urllib.parse import urlencode

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from shedlock_py.errors import ConfigurationError, ProviderError
from shedlock_py.events import OperatorAction, logger
from shedlock_py.model.record import Pause
from shedlock_py.model.request import validate_name
from shedlock_py.operators.changes import ACTIONS
from shedlock_py.operators.display import printable
from shedlock_py.page.reading import Shared, Store
from shedlock_py.page.rendering import STATIC, render, static_text
from shedlock_py.page.safety import FIELD, RequestFilter, Visitor, checked_token, proof, root_of
from shedlock_py.page.views import Shown, Views, clock_now, problem, store_does_not_reply, store_problem
from shedlock_py.provider import AsyncLockProvider, LockProvider
from shedlock_py.providers.kit.pausing import default_operator
from shedlock_py.runtime.blocking import OnLoop
from shedlock_py.runtime.threads import WorkerPool
from shedlock_py.runtime.versions import __version__
from shedlock_py.settings.options import is_async_provider, required_provider

WORKERS = 4
MOST_WAITING = 32
"""The most requests that wait for a worker. More requests are refused."""
LONGEST_READ = 10.0
"""Seconds, for a reply that changes nothing."""

View = Callable[[Store, Request, Visitor], Shown]


def page_app(
    provider: LockProvider | AsyncLockProvider | str,
    *,
    allow_changes: bool = False,
    token: str | None = None,
    elections: Iterable[str] = (),
    operator: Callable[[Request], str] | None = None,
    hosts: Iterable[str] = (),
) -> Starlette:
    """Return the page of the provider's locks and runs, to mount in FastAPI or Starlette: ``app.mount("/locks", …)``.

    Everybody who reaches the page can read it. Give it a ``token``, or put a login in front of it, in a middleware or a
    proxy. FastAPI does not call an application's dependencies for a mounted page.

    :param provider: a sync provider (called in worker threads), an async provider (called on the event loop that
        serves the page), or a URL.
    :param allow_changes: also pause, resume, free by force, demote and prune. By default the page changes nothing.
    :param token: the secret of each request, as the password of HTTP basic authentication or as a bearer token. It has
        16 characters or more.
    :param elections: the lock names of elections. The page has a view of their leaders.
    :param operator: returns the name of the person behind a request, for pauses, events and the log. Default: the user
        name that came with the token, else ``user@host`` of this process. A name that no record can hold is refused.
    :param hosts: the host names that requests may use. Default: any host name.
    :raises ConfigurationError: the token is short, or a name cannot be a lock name.
    """
    for what, given in (("elections", elections), ("hosts", hosts)):
        if isinstance(given, str):
            raise ConfigurationError(f"{what} must be a list of names, not the text {given!r}")
    views = Views(allow_changes, [validate_name(name) for name in elections])
    page = _Page(required_provider(provider), views, operator)
    request_filter = Middleware(
        RequestFilter, token=checked_token(token), allow_changes=allow_changes, hosts=frozenset(map(str.lower, hosts))
    )
    return Starlette(routes=page.routes(), middleware=[request_filter])


class _Page:
    def __init__(self, provider: Any, views: Views, operator: Callable[[Request], str] | None) -> None:
        self._provider = provider
        self._views = views
        self._operator = operator
        self._shared = Shared()
        self._pool = WorkerPool(WORKERS, "shedlock-page", self)
        self._places = threading.BoundedSemaphore(WORKERS + MOST_WAITING)

    def routes(self) -> list[Route]:
        views = self._views
        change = "/change/{action}"
        return [
            Route("/", self._get(views.jobs)),
            Route("/job", self._endpoint(self._job)),
            Route("/leaders", self._get(views.leaders)),
            Route("/store", self._get(views.store), methods=["GET"]),
            Route("/store", self._endpoint(lambda store, request, visitor: views.try_store(store)), methods=["POST"]),
            Route(change, self._endpoint(self._confirm), methods=["GET"]),
            Route(change, self._endpoint(self._change), methods=["POST"]),
            Route("/robots.txt", _robots),
            Route("/static/{name}", _static),
        ]

    def _get(self, view: Callable[..., Shown]) -> Callable[[Request], Any]:
        return self._endpoint(lambda store, request, visitor: view(store, dict(request.query_params)))

    def _endpoint(self, view: View) -> Callable[[Request], Any]:
        async def endpoint(request: Request) -> Response:
            loop = asyncio.get_running_loop()
            is_async = is_async_provider(self._provider)
            if request.method == "POST":
                self._shared.forget()
            store = Store(OnLoop(self._provider, loop) if is_async else self._provider, self._shared)
            visitor: Visitor = request.scope["shedlock"]
            if not self._places.acquire(blocking=False):
                return PlainTextResponse("Too many requests at once.\n", 503, {"retry-after": "5"})
            try:
                future = self._pool.submit(lambda: self._respond(view, store, request, visitor))
            except RuntimeError:
                self._places.release()
                return PlainTextResponse("No thread could be started.\n", 503, {"retry-after": "5"})
            future.add_done_callback(lambda _: self._places.release())
            reply = asyncio.wrap_future(future)
            longest = None if request.method == "POST" else LONGEST_READ
            if not (await asyncio.wait({reply}, timeout=longest))[0]:
                future.cancel()  # if no worker has begun
                return self._html(store_does_not_reply(LONGEST_READ), request, visitor)
            return reply.result()

        return endpoint

    def _respond(self, view: View, store: Store, request: Request, visitor: Visitor) -> Response:
        try:
            shown = view(store, request, visitor)
        except ProviderError as error:
            logger.warning("the page cannot read the store: %s", error)
            shown = store_problem(error)
        except ConfigurationError as error:
            shown = problem(400, printable(str(error)))
        if request.method == "POST":
            self._shared.forget()
        if shown.location:
            name = visitor.form.get("name", "")
            query = {"name": name, "done": shown.location, "proof": proof(visitor, shown.location, name)}
            return RedirectResponse(f"{root_of(request.scope)}/job?{urlencode(query)}", 303)
        return self._html(shown, request, visitor, store.age)

    def _html(self, shown: Shown, request: Request, visitor: Visitor, age: float = 0.0) -> Response:
        path: str = request.scope["path"]
        html = render(
            shown.template,
            **shown.values,
            root=root_of(request.scope),
            here=path.removeprefix(request.scope.get("root_path", "")) or "/",
            csrf_field=FIELD,
            csrf=visitor.csrf,
            allow_changes=self._views.allow_changes,
            is_get=request.method == "GET",
            now=clock_now(age),
            age=round(age, 1),
            version=__version__,
        )
        return HTMLResponse(html, shown.status)

    def _job(self, store: Store, request: Request, visitor: Visitor) -> Shown:
        values = dict(request.query_params)
        done, given = values.get("done", ""), values.get("proof", "")
        is_proved = hmac.compare_digest(given.encode(), proof(visitor, done, values.get("name", "")).encode())
        if done not in ACTIONS or not is_proved:
            values.pop("done", None)
        return self._views.job(store, values)

    # Changes

    def _confirm(self, store: Store, request: Request, visitor: Visitor) -> Shown:
        return self._views.confirm(store, _action(request), dict(request.query_params))

    def _change(self, store: Store, request: Request, visitor: Visitor) -> Shown:
        given = self._operator(request) if self._operator is not None else visitor.user
        try:
            by = Pause.validated(given).by if given else default_operator()
        except ConfigurationError as error:
            raise ConfigurationError(f"No record can hold this user name: {error}") from error
        return self._views.change(store, _action(request), visitor.form, by)


def _action(request: Request) -> OperatorAction:
    """:raises ConfigurationError: the page does not know this action."""
    action = request.path_params["action"]
    if action not in ACTIONS:
        raise ConfigurationError(f"unknown action {action!r:.50}")
    return cast(OperatorAction, action)


async def _robots(request: Request) -> Response:
    return PlainTextResponse("User-agent: *\nDisallow: /\n")


async def _static(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in STATIC:
        return PlainTextResponse("Not found\n", 404)
    return Response(static_text(name), media_type=STATIC[name], headers={"cache-control": "max-age=3600"})
