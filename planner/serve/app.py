"""The application: routes, one answer per question in worker processes, a token, and the headers of a local page."""

from __future__ import annotations

import asyncio
import hmac
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from costmodel.errors import SpecError
from planner.batch.executors.confined import ConfinedPool
from planner.batch.job_result import LOST, JobOutcome
from planner.serve import page
from planner.serve.answers import MODULES, answer
from planner.serve.question import Question, read_questions

LOCAL_HOSTS = ("127.0.0.1", "localhost", "[::1]")
"""Names of this machine in links; others are refused, so that no foreign page can ask through a browser (rebinding)."""

MAX_WAITING = 256
"""Most questions that wait for a worker; further ones are told to come back."""

KEPT_ANSWERS = 256
"""Answers that are kept: reloading, comparing and exporting ask for equal ones."""

RETRY_SECONDS = 5
"""Seconds after which a client that was sent away may ask again."""

COOKIE = "planner_token"

HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "img-src data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}


class Answers:
    """
    Answers by worker processes, each kept for equal questions.

    Parameters
    ----------
    processes
        Number of workers.
    seconds
        Longest time limit of a search; a worker is stopped after twice as long, and some seconds for its page.
    """

    def __init__(self, *, processes: int, seconds: float) -> None:
        work = partial(answer, seconds=seconds)
        self._pool = ConfinedPool(work, root=None, processes=processes, seconds=2 * seconds + 10, modules=MODULES)
        self._kept: OrderedDict[Question, asyncio.Future[JobOutcome]] = OrderedDict()
        self._num_waiting = 0
        for _ in range(processes):  # each starts a worker and fills its tables, so that no question waits for that
            self._pool.submit(read_questions("")[0])

    async def ask(self, question: Question) -> JobOutcome:
        """
        Return the answer to a question; equal questions at the same time are asked once.

        Raises
        ------
        HTTPException
            If too many questions wait.
        """
        found = self._kept.get(question)
        if found is None:
            if self._num_waiting >= MAX_WAITING:
                text = "Too many questions wait for an answer; ask again in some seconds."
                raise HTTPException(503, text, headers={"retry-after": str(RETRY_SECONDS)})
            found = self._kept[question] = asyncio.ensure_future(self._ask(question))
        self._kept.move_to_end(question)
        while len(self._kept) > KEPT_ANSWERS and next(iter(self._kept.values())).done():
            self._kept.popitem(last=False)
        outcome = await asyncio.shield(found)
        if outcome.status in LOST:
            self._kept.pop(question, None)  # another attempt may succeed
        return outcome

    async def _ask(self, question: Question) -> JobOutcome:
        self._num_waiting += 1
        try:
            return await asyncio.wrap_future(self._pool.submit(question))
        finally:
            self._num_waiting -= 1

    def close(self) -> None:
        """Stop all workers."""
        self._pool.close()


def build_app(answers: Answers, *, hosts: tuple[str, ...] = LOCAL_HOSTS, token: str | None = None) -> Starlette:
    """
    Build the application.

    Parameters
    ----------
    answers
        Workers that answer the questions.
    hosts
        Host names by which it may be called.
    token
        Secret that every request needs, as a bearer token, in the query or as a cookie; None: no secret.
    """
    routes = [
        Route("/", _respond(_index, answers)),
        Route("/answer", _respond(_fragment, answers)),
        Route("/page", _respond(_whole, answers)),
        Route("/report.json", _respond(_report, answers)),
        Route("/export.zip", _respond(_export, answers)),
        *(Route(f"/{name}", _asset(name)) for name in page.ASSETS),
        Route("/health", lambda _: PlainTextResponse("ok")),
    ]
    guards = [Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts), www_redirect=False)]
    if token is not None:
        guards.append(Middleware(_require_token, token=token))
    return Starlette(routes=routes, middleware=[Middleware(_add_headers), *guards])


Handler = Callable[[Request, Answers], Awaitable[Response]]


def _respond(handle: Handler, answers: Answers) -> Callable[[Request], Awaitable[Response]]:
    async def respond(request: Request) -> Response:
        try:
            return await handle(request, answers)
        except SpecError as error:
            if handle is _fragment:
                return JSONResponse({"html": page.mistake_html(str(error)), "chart": None}, status_code=400)
            return HTMLResponse(page.mistake_page(str(error)), status_code=400)

    return respond


async def _index(request: Request, answers: Answers) -> Response:
    """Answer with the whole page; without a query only the form is shown."""
    query = request.url.query
    shown, kept = read_questions(query)
    found = [(one, await answers.ask(one)) for one in (shown, *kept)] if query else []
    return HTMLResponse(page.page_html(shown, kept, found))


async def _fragment(request: Request, answers: Answers) -> Response:
    """Answer with what the page's script puts in place."""
    shown, kept = read_questions(request.url.query)
    found = [(one, await answers.ask(one)) for one in (shown, *kept)]
    return JSONResponse({"html": page.answer_html(found), "chart": page.chart_of(found)})


async def _whole(request: Request, answers: Answers) -> Response:
    return await _file(request, answers, "page", "text/html; charset=utf-8")


async def _report(request: Request, answers: Answers) -> Response:
    return await _file(request, answers, "report", "application/json")


async def _export(request: Request, answers: Answers) -> Response:
    return await _file(request, answers, "export", "application/zip")


async def _file(request: Request, answers: Answers, wanted: str, kind: str) -> Response:
    shown, _ = read_questions(request.url.query)
    outcome = await answers.ask(Question(fields=shown.fields, wanted=wanted))
    if outcome.report is None:
        raise SpecError("job", outcome.message or str(outcome.status))
    return Response(outcome.report["body"], media_type=kind)


def _asset(name: str) -> Callable[[Request], Response]:
    kind = "text/css" if name.endswith(".css") else "text/javascript"
    return lambda _: Response(page.ASSETS[name](), media_type=kind)


# --- guards ------------------------------------------------------------------------------------------------


def _add_headers(app: ASGIApp) -> ASGIApp:
    """Add the headers of a local page; a plan's page brings a policy of its own."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with(message: Message) -> None:
            if message["type"] == "http.response.start":
                own: Mapping[str, Any] = HEADERS
                if scope["path"] == "/page":
                    own = {name: text for name, text in HEADERS.items() if name != "content-security-policy"}
                message["headers"] = [*message["headers"], *((k.encode(), v.encode()) for k, v in own.items())]
            await send(message)

        await app(scope, receive, send_with)

    return answer


def _require_token(app: ASGIApp, token: str) -> ASGIApp:
    """Let requests with the token pass; one with the token in its query gets a cookie."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        request = Request(scope)
        bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
        in_query = request.query_params.get("token", "")
        given = bearer or in_query or request.cookies.get(COOKIE, "")
        if not hmac.compare_digest(given.encode(), token.encode()):
            text = "A token is needed: open the link that 'planner serve' printed."
            await PlainTextResponse(text, status_code=401)(scope, receive, send)
        elif in_query:
            home = Response(status_code=303, headers={"location": "/"})
            home.set_cookie(COOKIE, token, httponly=True, samesite="strict")
            await home(scope, receive, send)
        else:
            await app(scope, receive, send)

    return answer
