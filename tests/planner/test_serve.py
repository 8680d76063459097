"""``planner serve``: questions in links, answers by workers, refused files and strangers."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from concurrent.futures import Future
from urllib.parse import urlencode

import pytest

from costmodel.errors import SpecError
from planner.batch.job_result import JobOutcome, JobStatus
from planner.cli import main
from planner.serve.answers import answer, read_problem
from planner.serve.question import FIELDS, MAX_LETTERS, Question, read_questions
from tests.cases import in_one_case

SMALL = {"model": "llama3-8b", "device": "h100", "devices": "8", "batch": "64", "sequence": "4k", "tokens": "1T"}


def ask_for(wanted="answer", **fields):
    """A question with some fields."""
    shown, _ = read_questions(urlencode(SMALL | fields))
    return Question(fields=shown.fields, wanted=wanted)


# --- questions -------------------------------------------------------------------------------------------------------


def test_a_link_holds_the_job_and_the_plans_beside_it():
    """A link that was read is written as it was."""
    other = urlencode(SMALL | {"devices": "16"})
    shown, kept = read_questions(f"{urlencode(SMALL)}&{urlencode({'with': other})}")

    assert shown["devices"] == "8"
    assert [one["devices"] for one in kept] == ["16"]
    assert read_questions(shown.query)[0] == shown


def test_an_empty_query_is_the_default_of_each_field():
    """512 devices, nothing beside."""
    shown, kept = read_questions("")

    assert dict(zip((field.name for field in FIELDS), shown.fields, strict=True))["devices"] == "512"
    assert kept == ()


@in_one_case(
    ("query", "said"),
    [
        ("modle=llama3-8b", "'modle' is no field"),
        (f"model={'a' * MAX_LETTERS}", f"at most {MAX_LETTERS:,} are read"),
        ("&".join(["with=model%3Dllama3-8b"] * 4), "4 plans are kept; at most 3"),
        ("model=llama3-8b&with=modle%3D1", "'modle' is no field"),
    ],
)
def test_a_link_that_cannot_be_read_is_refused(query, said):
    """Unknown fields, also of kept plans, too many of them, too many letters."""
    with pytest.raises(SpecError, match=said):
        read_questions(query)


@pytest.mark.parametrize(
    "fields",
    [
        {"model": "/etc/passwd"},
        {"model": "config.json"},
        {"model": "."},
        {"device": "../device.yaml"},
        {"device": "~/device"},
        {"more": "search.candidates=list.csv"},
        {"more": "search.candidates=['/etc/passwd']"},
        {"more": "training.precision=../../mine"},
        {"more": "cluster.framework={like: /etc/passwd}"},
        {"target": "a\\b"},
        {"more": "'search.candidates= ./list'"},
    ],
)
def test_no_field_names_a_file(fields, tmp_path, monkeypatch):
    """Paths of every spelling, in each field and inside of entries; a worker's own folder is empty."""
    monkeypatch.chdir(tmp_path)
    outcome = answer(ask_for(**fields), seconds=1.0, scratch=tmp_path)

    assert outcome.status == JobStatus.WRONG_INPUT


def test_a_name_of_the_hub_that_the_catalog_has_is_no_file():
    """Its slash is none of a path."""
    assert read_problem(ask_for(model="meta-llama/Meta-Llama-3-8B"), 1.0).facts.model.name == "llama3-8b"


def test_a_mistake_names_its_field_as_the_form_does(tmp_path):
    """The form has no options."""
    outcome = answer(ask_for(tokens="many"), seconds=1.0, scratch=tmp_path)

    assert "Tokens" in outcome.message
    assert "--tokens" not in outcome.message


def test_a_question_searches_no_longer_than_the_server_allows():
    """A job with a limit of 1,000 s has 3 s."""
    assert read_problem(ask_for(more="search.time_limit_seconds=1000"), 3.0).search.time_limit_seconds == 3.0


def test_words_hold_decisions_fixed_and_entries_change_the_job():
    """As behind the command planner plan."""
    problem = read_problem(ask_for(more="TP4 recompute=none search.tolerance=0"), 3.0)

    assert problem.search.pin["tp"] == 4
    assert problem.search.tolerance == 0


def test_an_answer_has_sections_figures_and_bars(tmp_path):
    """Eight GPUs, with a price."""
    report = answer(ask_for(price="2.5"), seconds=10.0, scratch=tmp_path).report

    assert "llama3-8b on 8 x h100" in report["html"]
    assert report["figures"]["Strategy"].startswith("TP")
    assert report["chart"]["rows"][0]["parts"]


# --- the application -------------------------------------------------------------------------------------------------

starlette = pytest.importorskip("starlette", reason="pip install '.[serve]'")


class Pool:
    """Answers without workers; each question waits until it is let go."""

    def __init__(self):
        self.asked: list[tuple[Question, Future]] = []

    def submit(self, question):
        self.asked.append((question, Future()))
        return self.asked[-1][1]

    def close(self):
        pass


def an_app(monkeypatch, **options):
    """The application with a pool of futures."""
    from planner.serve import app

    monkeypatch.setattr(app, "ConfinedPool", lambda work, **options: Pool())
    answers = app.Answers(processes=0, seconds=1.0)
    return app.build_app(answers, **options), answers


async def get(app, path, headers=(), host=b"127.0.0.1:8765"):
    """Send one request; return status, headers and body."""
    path, _, query = path.partition("?")
    sent: list[dict] = []
    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(b"host", host), *headers],
        "server": ("127.0.0.1", 8765),
        "scheme": "http",
        "root_path": "",
        "http_version": "1.1",
    }

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        sent.append(message)

    await app(scope, receive, send)
    body = b"".join(one.get("body", b"") for one in sent[1:])
    return sent[0]["status"], dict(sent[0]["headers"]), body.decode()


def test_equal_questions_are_asked_once_and_all_get_the_answer(monkeypatch):
    """Three at once."""
    app, answers = an_app(monkeypatch)
    path = f"/answer?{urlencode(SMALL)}"

    async def ask():
        waiting = [asyncio.ensure_future(get(app, path)) for _ in range(3)]
        while not answers._pool.asked:
            await asyncio.sleep(0)
        [(question, future)] = answers._pool.asked
        assert question["model"] == "llama3-8b"
        future.set_result(JobOutcome(status=JobStatus.OPTIMAL, report={"html": "<p>a plan</p>"}))
        return await asyncio.gather(*waiting)

    every = asyncio.run(ask())

    assert [status for status, *_ in every] == [200, 200, 200]
    assert all("a plan" in body for *_, body in every)


def test_a_lost_answer_is_asked_again(monkeypatch):
    """The first worker dies; its reason is escaped."""
    app, answers = an_app(monkeypatch)

    async def ask(outcome):
        waiting = asyncio.ensure_future(get(app, f"/answer?{urlencode(SMALL)}"))
        while not answers._pool.asked:
            await asyncio.sleep(0)
        answers._pool.asked.pop()[1].set_result(outcome)
        return await waiting

    async def twice():
        lost = JobOutcome(status=JobStatus.WORKER_DIED, message="its worker <died>")
        return await ask(lost), await ask(JobOutcome(status=JobStatus.OPTIMAL, report={"html": "<p>a plan</p>"}))

    (_, _, first), (_, _, second) = asyncio.run(twice())

    assert "its worker &lt;died&gt;" in first
    assert "a plan" in second


def test_a_crowd_is_told_to_come_back(monkeypatch):
    """One question waits, as many as may."""
    from planner.serve import app as home

    monkeypatch.setattr(home, "MAX_WAITING", 1)
    app, answers = an_app(monkeypatch)

    async def ask():
        first = asyncio.ensure_future(get(app, f"/answer?{urlencode(SMALL)}"))
        while not answers._pool.asked:
            await asyncio.sleep(0)
        refused = await get(app, f"/answer?{urlencode(SMALL | {'devices': '16'})}")
        first.cancel()
        return refused

    status, headers, _ = asyncio.run(ask())

    assert status == 503
    assert headers[b"retry-after"] == b"5"


def test_other_host_names_are_refused_and_nothing_is_loaded_from_elsewhere(monkeypatch):
    """A page of another name that leads here has none of the answers."""
    app, _ = an_app(monkeypatch)

    foreign, *_ = asyncio.run(get(app, "/", host=b"evil.example"))
    status, headers, body = asyncio.run(get(app, "/"))

    assert (status, foreign) == (200, 400)
    assert headers[b"content-security-policy"].startswith(b"default-src 'none'")
    assert "http://" not in body
    assert "https://" not in body


def test_a_token_opens_the_page_by_link_cookie_or_header(monkeypatch):
    """Without it nothing, and a script of the page cannot read it."""
    app, _ = an_app(monkeypatch, token="a-long-secret-text")

    without, *_ = asyncio.run(get(app, "/"))
    wrong, *_ = asyncio.run(get(app, "/?token=another"))
    by_link, headers, _ = asyncio.run(get(app, "/?token=a-long-secret-text"))
    cookie = headers[b"set-cookie"].split(b";")[0]
    by_cookie, *_ = asyncio.run(get(app, "/", [(b"cookie", cookie)]))
    by_header, *_ = asyncio.run(get(app, "/", [(b"authorization", b"Bearer a-long-secret-text")]))

    assert (without, wrong, by_link, by_cookie, by_header) == (401, 401, 303, 200, 200)
    assert b"HttpOnly" in headers[b"set-cookie"]


def test_what_a_link_says_is_escaped(monkeypatch):
    """Its words stand in the page as text."""
    app, _ = an_app(monkeypatch)

    status, _, body = asyncio.run(get(app, f"/?{urlencode({'<script>x': '1'})}"))

    assert status == 400
    assert "<script>x" not in body


# --- the command -----------------------------------------------------------------------------------------------------


def test_a_port_in_use_is_named(capsys):
    """Exit code 2."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", "--port", str(port)]) == 2

    assert f"127.0.0.1:{port} cannot be opened" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--host", "0.0.0.0"], "can be reached by others. Add --token"),
        (["--host", "0.0.0.0", "--token", "short"], "has 5 letters; at least 16"),
        (["--port", "99999999"], "--port"),
    ],
)
def test_a_server_that_others_reach_needs_a_token(capsys, words, said):
    """A short one is none."""
    assert main(["serve", *words]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.slow
def test_a_killed_worker_is_replaced():
    """By a signal, between two questions."""
    from planner.serve.app import Answers

    answers = Answers(processes=1, seconds=10.0)
    try:

        async def ask():
            first = await answers.ask(ask_for())
            worker = answers._pool._pool._all[0]
            os.kill(next(iter(worker._pool._processes)), signal.SIGKILL)
            return first, await answers.ask(ask_for(devices="16"))

        first, second = asyncio.run(ask())
    finally:
        answers.close()

    assert first.report["figures"]
    assert second.report["figures"]
