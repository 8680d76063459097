"""Whatever a job holds, the loader either reads it or says what is wrong: no other exception than the project's own."""

import copy
import json

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from costmodel.errors import SpecError, mistakes_of
from planner.jobs.problem import Problem, load
from tests.cases import read_table
from tests.oracle import in_step

DATA = read_table("job_properties")
FULL_JOB = DATA["full"]
JOBS = (
    FULL_JOB,
    {**FULL_JOB, "model": DATA["experts"]},
    {**FULL_JOB, "model": {"base": DATA["llama"], "num_layers": 2}},
    DATA["small"],
)

NASTY_VALUES = [*DATA["nasty values"], 10**400, "\ud800", "x" * 10_000]
"""Values of every type and size, and words that mean something elsewhere."""

KEYS = [*DATA["keys"], "x" * 500]

scalars = st.sampled_from(NASTY_VALUES) | st.integers() | st.floats() | st.text(max_size=20)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


def places(part, path=()):
    """Every place of a job, as the keys that lead to it."""
    items = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from places(inner, (*path, key))


@st.composite
def broken_jobs(draw):
    """A valid job with one to three entries removed, renamed, replaced, nested, or added."""
    job = copy.deepcopy(draw(st.sampled_from(JOBS)))
    for _ in range(draw(st.integers(1, 3))):
        mutate(draw, job)
    return job


def mutate(draw, job):
    """Change one entry for the worse."""
    *parents, last = draw(st.sampled_from(list(places(job)) or [("model",)]))
    place = job
    for key in parents:
        place = place[key]
    action = draw(st.sampled_from(["replace", "replace", "remove", "rename", "wrap", "retype", "add"]))
    if action == "replace":
        place[last] = copy.deepcopy(draw(values))
    elif action == "remove":
        del place[last]
    elif action == "rename" and isinstance(place, dict):
        place[draw(st.sampled_from(KEYS))] = place.pop(last)
    elif action == "wrap":
        place[last] = draw(st.sampled_from([[place.get(last)] if isinstance(place, dict) else [], {"a": 1}, [[]]]))
    elif action == "retype" and isinstance(place, dict):
        place[last] = str(place[last])
    elif isinstance(place, dict):
        place[draw(st.sampled_from(KEYS) | st.text(max_size=8))] = copy.deepcopy(draw(values))


def complaint(job, overrides=()):
    """The longest thing that the loader says of a job; nothing if it is a problem."""
    try:
        problem = load(job, overrides)
    except SpecError as error:
        return max(map(str, mistakes_of(error)), key=len)
    assert isinstance(problem, Problem)
    return ""


PROPERTY = settings(deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@pytest.mark.slow
@settings(PROPERTY, max_examples=in_step(500))
@given(broken_jobs())
def test_broken_mappings(job):
    """As Python objects; a message has a reasonable length."""
    assert len(complaint(job)) < 2_000


@pytest.mark.slow
@settings(PROPERTY, max_examples=in_step(200))
@given(broken_jobs(), st.booleans())
def test_broken_files(tmp_path_factory, job, as_json):
    """The same jobs as text, in the spelling of PyYAML or of JSON."""
    path = tmp_path_factory.getbasetemp() / "broken.yaml"
    path.write_bytes((json.dumps if as_json else yaml.safe_dump)(job).encode("utf-8", "surrogatepass"))
    assert len(complaint(path)) < 2_000


YAML_CHARACTERS = "abc:-[]{},&*!|>'\"%@#?~ \n\t\0\\0123456789.eE_+<=\u2028é\ufeff"


@settings(PROPERTY, max_examples=in_step(300))
@given(
    st.text(YAML_CHARACTERS, max_size=60) | st.text(max_size=60), st.sampled_from(["", "model: ", "search:\n  pin: "])
)
@pytest.mark.slow
def test_random_text(tmp_path_factory, text, start):
    """No random text is a job, so each is told what is wrong."""
    path = tmp_path_factory.getbasetemp() / "random.yaml"
    path.write_bytes((start + text).encode("utf-8", "surrogatepass"))
    assert complaint(path)


@settings(PROPERTY, max_examples=100)
@given(st.binary(max_size=60))
def test_random_bytes(tmp_path_factory, content):
    """Binary files too."""
    path = tmp_path_factory.getbasetemp() / "bytes.yaml"
    path.write_bytes(content)
    assert complaint(path)


OVERRIDE_PATHS = st.sampled_from([".".join(map(str, place)) for place in places(FULL_JOB)]) | st.text(
    YAML_CHARACTERS, max_size=15
)


@pytest.mark.slow
@settings(PROPERTY, max_examples=in_step(300))
@given(
    OVERRIDE_PATHS, st.text(YAML_CHARACTERS, max_size=15) | scalars.map(str), st.sampled_from(["=", "=", "=", "", "=="])
)
def test_random_overrides(path, value, equals):
    """Known and random paths, random values."""
    complaint(FULL_JOB, [f"{path}{equals}{value}"])


@pytest.mark.parametrize("job", JOBS, ids=["huggingface", "described", "changed", "catalog"])
def test_jobs_are_valid_before_they_are_broken(job):
    """Otherwise the properties above would test nothing behind the first complaint."""
    assert complaint(job) == ""
