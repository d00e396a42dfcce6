"""What the configuration check says of every fault before a run, and of public recipes that are sound."""

import pytest

from experiments.faults.predicates import entries, false_alarms, rows

ROWS = {row.fault: row for row in rows()}
UNTOLD = {"F038", "F078", "F079", "F080", "F100", "F108", "F109", "F119", "F123", "F127"}


@pytest.mark.parametrize("row", ROWS.values(), ids=lambda row: row.fault)
def test_a_fault_that_a_setting_tells_is_caught_and_its_absence_is_not(row):
    assert (row.caught == "not told") is (row.fault in UNTOLD)
    assert bool(row.predicate) is (row.fault not in UNTOLD)
    assert not row.alarm_without
    assert row.how


@pytest.mark.parametrize("fault", [f for f, entry in entries().items() if "change" in entry])
def test_a_fault_of_the_recipe_itself_is_rejected(fault):
    assert ROWS[fault].caught == "rejected"


def test_no_public_recipe_raises_an_alarm():
    alarms = false_alarms()
    assert alarms.comparisons >= 250
    assert alarms.raised == ()
