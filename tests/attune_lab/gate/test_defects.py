"""The table of known defects: every condition can be met and lifted, and asks for nothing that no run tells."""

import pytest

from attune_lab.gate.defects import active, defects
from attune_lab.gate.facts import LIBRARIES, facts_from, vocabulary
from attune_lab.recipe.registry import registry
from experiments.faults.predicates import entries

CASES = {fault: entry for fault, entry in entries().items() if "facts" in entry}
BY_ID = {defect.id: defect for defect in defects()}


def test_every_defect_has_a_case_and_every_case_a_defect():
    assert set(CASES) == set(BY_ID)


@pytest.mark.parametrize("fault", CASES)
def test_a_defect_is_active_under_its_facts_and_gone_without_one(fault):
    defect, entry = BY_ID[fault], CASES[fault]
    found, unknown = active(facts_from(entry["facts"]))
    assert defect in found
    found, unknown = active(facts_from({**entry["facts"], **entry["without"]}))
    assert defect not in found
    assert all(other is not defect for other, _ in unknown)


@pytest.mark.parametrize("fault", [f for f, entry in CASES.items() if set(entry["facts"]) & set(LIBRARIES)])
def test_an_unknown_version_leaves_it_open(fault):
    """Where the version decides, its absence is a question and never a silent pass."""
    given = {name: value for name, value in CASES[fault]["facts"].items() if name not in LIBRARIES}
    named = BY_ID[fault].when.names & set(LIBRARIES) - {"container"}
    found, unknown = active(facts_from(given))
    if named and BY_ID[fault] not in found:
        assert {name for defect, name in unknown if defect.id == fault} <= named
        assert any(defect.id == fault for defect, _ in unknown)


def test_a_defect_of_one_stack_says_nothing_of_another():
    for fault, entry in CASES.items():
        if BY_ID[fault].stack == ("megatron_lm",):
            found, unknown = active(facts_from({**entry["facts"], "stack": "another"}))
            assert fault not in {d.id for d in (*found, *(d for d, _ in unknown))}, fault


def test_conditions_speak_the_vocabulary():
    known = {*registry(), *vocabulary(), *LIBRARIES, "env_TORCH_NCCL_AVOID_RECORD_STREAMS"}
    for defect in defects():
        assert defect.when.names <= known, defect.id
        assert set(defect.effect) <= {"step_1", "bias", "grad_norm", "diverges_at", "reported"}
        assert defect.outcome in ("reject", "inconclusive")
        assert defect.title
        assert defect.mechanism.endswith(".")
        assert defect.source


def test_every_fact_is_asked_for():
    asked = set().union(*(defect.when.names for defect in defects()))
    assert set(vocabulary()) - asked == {"stack"}
