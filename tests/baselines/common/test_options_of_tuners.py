"""Options are typed by their defaults, and refused in one sentence."""

from __future__ import annotations

import pytest

from attune_lab.contracts import UserError
from baselines.common.options import Option, read_options

KNOWN = {
    "early_stop": Option(5, least=1),
    "margin": Option(0.9, least=0.0, most=1.0),
    "sampler": Option("tpe", choices=("tpe", "gp")),
    "warm": Option(True),
    "note": Option(""),
}


def test_defaults_and_text_from_a_command_line():
    assert read_options("mine", {}, KNOWN) == {
        "early_stop": 5, "margin": 0.9, "sampler": "tpe", "warm": True, "note": "",
    }  # fmt: skip
    given = {"early_stop": "7", "margin": "1", "sampler": "gp", "warm": "False", "note": "x"}
    assert read_options("mine", given, KNOWN) == {
        "early_stop": 7, "margin": 1.0, "sampler": "gp", "warm": False, "note": "x",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"erly_stop": 5}, "the mine tuner has no option erly_stop; known: early_stop, margin, sampler, warm, note"),
        ({"early_stop": 0}, "option early_stop of the mine tuner is 0; give a whole number at least 1"),
        ({"early_stop": 2.5}, "option early_stop of the mine tuner is 2.5; give a whole number at least 1"),
        ({"early_stop": True}, "option early_stop of the mine tuner is True; give a whole number at least 1"),
        ({"margin": "nan"}, "option margin of the mine tuner is 'nan'; give a number at least 0 and at most 1"),
        ({"margin": [1]}, "option margin of the mine tuner is [1]; give a number at least 0 and at most 1"),
        ({"sampler": "cma"}, "option sampler of the mine tuner is 'cma'; give one of tpe, gp"),
        ({"warm": 1}, "option warm of the mine tuner is 1; give true or false"),
        ({"note": 1}, "option note of the mine tuner is 1; give a text"),
    ],
)
def test_refusals(given, message):
    with pytest.raises(UserError) as refused:
        read_options("mine", given, KNOWN)
    assert str(refused.value) == message


def test_a_tuner_without_options_says_so():
    with pytest.raises(UserError, match="the plain tuner has no option x; it takes none, so leave it out"):
        read_options("plain", {"x": 1})
