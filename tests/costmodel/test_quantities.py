"""Numbers with units: exact where they are clear, refused with what to write where they are not."""

from contextlib import suppress
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.errors import NumberError, SpecError
from costmodel.quantities import BYTES, COUNT, GIBIBYTES, KINDS, RATE, SECONDS, SEQUENCE, finite, number, whole

RIGHT = [
    (COUNT, "15T", 15 * 10**12),
    (COUNT, "1k", 1000),
    (COUNT, "1K", 1000),
    (COUNT, "1.5M", 1_500_000),
    (COUNT, ".5B", 500_000_000),
    (COUNT, " 2k ", 2000),
    (COUNT, "-5k", -5000),
    (SEQUENCE, "8k", 8192),
    (SEQUENCE, "128K", 131_072),
    (SEQUENCE, "1M", 1_048_576),
    (BYTES, "80GiB", 85_899_345_920),
    (BYTES, "80GB", 80_000_000_000),
    (BYTES, "7B", 7),
    (GIBIBYTES, "80GiB", 80),
    (GIBIBYTES, "512MiB", 0.5),
    (GIBIBYTES, "1.073741824GB", 1),
    (RATE, "50GB/s", 50_000_000_000),
    (RATE, "400Gbit/s", 50_000_000_000),
    (SECONDS, "5min", 300),
    (SECONDS, "1.5h", 5400),
    (SECONDS, "2d", 172_800),
    (SECONDS, "250ms", 0.25),
    (SECONDS, "2minutes", 120),
]

AS_IT_IS = [
    "8",
    "1e9",
    "1_000",
    "many",
    "",
    "nan",
    "inf",
    "0x10",
    "2026-01-01",
    "1:30",
    "64..128",
    "k",
    "8k8",
    "9" * 200,
]
"""Texts of no unit, which whoever reads the number judges."""

WRONG = [
    (COUNT, "1,000", "got '1,000'. Write 1000"),
    (COUNT, "1,000k", "got '1,000k'. Write 1000k"),
    (COUNT, "1,5T", "got '1,5T'. Write 1.5T"),
    (COUNT, "8 k", "got '8 k'. Write 8k"),
    (COUNT, "1 000", "got '1 000'. Write 1000"),
    (COUNT, "1_000k", "got '1_000k'. Write 1000k"),
    (COUNT, "1e3k", "got '1e3k', an exponent and a unit at once. Write 1000000"),
    (COUNT, "1E3 k", "got '1E3 k'. Write 1000000"),
    (COUNT, "1e999T", "got '1e999T', an exponent and a unit at once. Write 15T, or the number alone"),
    (COUNT, "15t", "there is no unit 't' here. Write 15T"),
    (COUNT, "12m", "there is no unit 'm' here. Write 12M"),
    (COUNT, "2G", "there is no unit 'G' here. Write 2B"),
    (COUNT, "15 trillion", "There is no unit 'trillion' here. Write 15T"),
    (COUNT, "15GB", "'GB' is a unit of bytes. Write 15 alone, or followed by one of k, K, M, B, T"),
    (COUNT, "5min", "'min' is a unit of seconds. Write 5 alone"),
    (COUNT, "512 GPUs", "There is no unit 'GPUs'. Write 512 alone"),
    (SEQUENCE, "8T", "'T' is a unit of a count. Write 8 alone"),
    (SEQUENCE, "8Ki", "there is no unit 'Ki' here. Write 8k"),
    (SEQUENCE, "8192 tokens", "There is no unit 'tokens'. Write 8192 alone"),
    (BYTES, "80gb", "there is no unit 'gb' here. Write 80GB"),
    (BYTES, "80G", "there is no unit 'G' here. Write 80GB or 80GiB"),
    (BYTES, "1KB", "there is no unit 'KB' here. Write 1kB or 1KiB"),
    (BYTES, "80 GiB", "got '80 GiB'. Write 80GiB"),
    (RATE, "50GB", "there is no unit 'GB' here. Write 50GB/s"),
    (RATE, "400Gbps", "there is no unit 'Gbps' here. Write 400Gbit/s"),
    (RATE, "400Gb/s", "there is no unit 'Gb/s' here. Write 400Gbit/s"),
    (SECONDS, "5m", "there is no unit 'm' here. Write 5min"),
    (SECONDS, "5M", "there is no unit 'M' here. Write 5min"),
    (SECONDS, "2Hours", "there is no unit 'Hours' here. Write 2hours"),
]


@pytest.mark.parametrize(("kind", "text", "value"), RIGHT, ids=[text for _, text, _ in RIGHT])
def test_numbers_with_units(kind, text, value):
    """By hand; whole ones are integers, so that counts take them."""
    read = number(text, kind)

    assert read == value
    assert isinstance(read, int) == (value == int(value))


@pytest.mark.parametrize("text", AS_IT_IS)
def test_texts_without_a_unit_are_left_alone(text):
    """Whether they are numbers is a question for others."""
    assert number(text, COUNT) is text


@pytest.mark.parametrize(("kind", "text", "message"), WRONG, ids=[text for _, text, _ in WRONG])
def test_what_is_not_clear_is_refused_with_what_to_write(kind, text, message):
    """What was written stays as it was spelled."""
    with pytest.raises(ValueError, match="expected") as caught:
        number(text, kind)

    assert str(caught.value).startswith(f"expected {kind.name} such as {kind.example}, got '{text}'")
    assert message in str(caught.value)


@pytest.mark.parametrize(("kind", "text", "message"), WRONG, ids=[text for _, text, _ in WRONG])
def test_what_a_message_says_to_write_is_right(kind, text, message):
    """Each of the alternatives."""
    with pytest.raises(NumberError, match="expected") as caught:
        number(text, kind)
    written = caught.value.hint.partition("Write ")[2].partition(",")[0].removesuffix(".").removesuffix(" alone")

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


@pytest.mark.parametrize("text", ["", "many", "nan", "inf", "1e999", "9" * 400, "8 k"])
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
