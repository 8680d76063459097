"""Software stacks: a device's profile with other kernels."""

from __future__ import annotations

from dataclasses import fields

import pytest

from costmodel import catalog
from costmodel.errors import SpecError
from costmodel.software import equip
from costmodel.spec import Profile, Software

H100 = catalog.device("h100-80gb-sxm")

MOST_NUMBERS = 6
"""Fitted constants of one stack (the issue's own limit)."""


def test_settings_replace_and_factors_multiply_what_the_profile_says():
    """0.8 of an attention efficiency of 0.5 is 0.4; every dtype's matmul is scaled."""
    software = Software(
        name="old",
        settings={"fused_attention": False, "attention_efficiency": 0.5},
        factors={"attention_efficiency": 0.8, "matmul_efficiency": 0.5, "kernel_seconds": 2.0},
    )

    profile = equip(H100, software).profile

    assert not profile.fused_attention
    assert profile.kernel_seconds == 2 * H100.profile.kernel_seconds
    assert profile.matmul_efficiency["bf16"] == 0.5 * H100.profile.matmul_efficiency["bf16"]


def test_a_factor_lifts_no_rate_above_its_peak():
    """A fraction of a peak ends at 1."""
    assert equip(H100, Software(name="magic", factors={"memory_efficiency": 9.0})).profile.memory_efficiency == 1.0


@pytest.mark.parametrize(
    ("software", "sentence"),
    [
        (Software(name="s", settings={"atention_efficiency": 0.5}), "attention_efficiency"),
        (Software(name="s", factors={"fused_attention": 2.0}), "nothing that a factor could multiply"),
        (Software(name="s", factors={"tp_overlap_splits": 1.5}), "nothing that a factor could multiply"),
        (Software(name="s", factors={"retention": 2.0}), "nothing that a factor could multiply"),
        (Software(name="s", settings={"memory_efficiency": 2.0}), "less than or equal to 1"),
    ],
    ids=["unknown field", "no number", "a count", "a record", "impossible"],
)
def test_software_that_fits_no_profile_is_refused(software, sentence):
    """The error names the entry and what was wrong."""
    with pytest.raises(SpecError, match=sentence):
        equip(H100, software)


@pytest.mark.parametrize("name", catalog.software_stacks())
def test_every_stack_says_what_it_is_in_few_numbers(name):
    """Six numbers at most, each of a field that there is; settings are facts, whose numbers have a source."""
    software = catalog.software(name)
    facts = {field for field, value in software.settings.items() if type(value) in (int, float)}
    known = {field.name for field in fields(Profile)}

    assert software.description
    assert {*software.settings, *(name.partition("@")[0] for name in software.factors)} <= known
    assert len(facts) + len(software.factors) <= MOST_NUMBERS
    assert "settings" in software.sources or facts <= {key.partition(".")[2] for key in software.sources}


@pytest.mark.parametrize("name", catalog.software_stacks())
def test_scores_that_are_no_kernel_stay_in_memory(name):
    """Korthikanti et al.: 5 a s^2 b bytes of scores per layer with dropout, 2 without; FlashAttention keeps none."""
    profile = equip(H100, catalog.software(name)).profile

    assert (profile.retention.attention_score_bytes > 0) == (not profile.fused_attention)
