"""Numbers with units: exact where they are clear, refused with what to write where they are not."""

from contextlib import suppress
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel import quantities
from costmodel.errors import NumberError, SpecError
from costmodel.quantities import COUNT, KINDS, finite, number, whole
from tests.cases import in_one_case, read_table

TABLE = read_table("quantities")

WRONG = [(getattr(quantities, kind), text, message) for kind, text, message in TABLE["wrong"]]


@in_one_case(("kind", "text", "value"), TABLE["right"])
def test_numbers_with_units(kind, text, value):
    """By hand; whole ones are integers, so that counts take them."""
    read = number(text, getattr(quantities, kind))

    assert read == value
    assert isinstance(read, int) == (value == int(value))


@in_one_case("text", [*TABLE["as_it_is"], "9" * 200])
def test_texts_without_a_unit_are_left_alone(text):
    """Whether they are numbers is a question for others."""
    assert number(text, COUNT) is text


@in_one_case(("kind", "text", "message"), WRONG)
def test_what_is_not_clear_is_refused_with_what_to_write(kind, text, message):
    """A text stays as it was spelled; each of the alternatives is right."""
    with pytest.raises(NumberError, match="expected") as caught:
        number(text, kind)
    written = caught.value.hint.partition("Write ")[2].partition(",")[0].removesuffix(".").removesuffix(" alone")

    assert str(caught.value).startswith(f"expected {kind.name} such as {kind.example}, got '{text}'")
    assert message in str(caught.value)
    assert all(isinstance(finite(one, kind, "x"), float) for one in written.split(" or "))


@given(st.sampled_from(KINDS), st.data(), st.integers(0, 10**9), st.integers(0, 6))
def test_products_are_exact(kind, data, digits, decimals):
    """As fractions have them: 0.1k is 100, 1.1T has no rounding of binary numbers."""
    unit = data.draw(st.sampled_from(sorted(kind.units)))
    text = f"{digits // 10**decimals}.{digits % 10**decimals:0{decimals}d}" if decimals else str(digits)
    exact = Fraction(digits, 10**decimals) * kind.units[unit]

    assert number(f"{text}{unit}", kind) == (int(exact) if exact.denominator == 1 else float(exact))


@given(st.sampled_from(KINDS), st.text(max_size=80))
def test_any_text_is_read_or_refused(kind, text):
    """Nothing else is raised, and nothing takes long."""
    with suppress(ValueError):
        assert isinstance(number(text, kind), int | float | str)


@in_one_case("text", ["", "many", "nan", "inf", "1e999", "9" * 400, "8 k"])
def test_options_are_finite(text):
    """Whoever calls with a text gets a number or a message with the option's name."""
    with pytest.raises(SpecError, match=r"--timeout: expected a count such as 15T, got "):
        finite(text, COUNT, "--timeout")


def test_counts_are_whole():
    """At least one, where nothing else is said."""
    assert whole("1.5k", COUNT, "--top") == 1500
    for text in ("0", "1.5", "-1k"):
        with pytest.raises(SpecError, match=rf"--top: expected a whole number from 1 on, got '{text}'."):
            whole(text, COUNT, "--top")
