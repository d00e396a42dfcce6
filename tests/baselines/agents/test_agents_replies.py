"""What of a reply's changes the space takes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from attune_lab.llm.schema import problems
from baselines.agents.cards import card_of
from baselines.agents.replies import accepted, proposal_schema
from tests.baselines.small_task import small_task

TASK = small_task()
SPACE = TASK.space
JSON = st.none() | st.booleans() | st.integers(-4, 300) | st.floats(allow_nan=False) | st.text(max_size=12)


def test_fields_outside_the_space_are_dropped():
    changes = {"tp": 4, "lr": 0.1, "pp": 3, "recompute": "full", "mbs": "2", "ep_overlap": 1}
    assert accepted(changes, SPACE) == ({"tp": 4, "recompute": "full"}, ("ep_overlap", "lr", "mbs", "pp"))


def test_a_switch_is_no_number_and_a_whole_number_is_one():
    assert accepted({"tp": True}, SPACE) == ({}, ("tp",))
    kept, dropped = accepted({"tp": 4.0}, SPACE)
    assert (kept, type(kept["tp"]), dropped) == ({"tp": 4}, int, ())


@given(st.dictionaries(st.sampled_from([*SPACE.parameters, "lr", "gbs"]), JSON, max_size=8))
def test_whatever_is_kept_is_a_choice_and_the_rest_is_named(changes):
    kept, dropped = accepted(changes, SPACE)
    assert all(value in SPACE.parameters[key].choices for key, value in kept.items())
    assert set(kept) | set(dropped) == set(changes)
    assert not set(kept) & set(dropped)
    SPACE.apply(TASK.baseline, kept)


def test_the_schema_puts_reasoning_first_and_takes_foreign_fields():
    schema = proposal_schema(card_of(TASK))
    assert next(iter(schema["properties"])) == "reasoning"
    assert problems({"reasoning": "", "lever": "", "changes": {"lr": 1}}, schema) == []
    assert problems({"lever": "", "changes": {}}, schema) == ["the reply lacks reasoning"]
