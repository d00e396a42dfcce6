"""Budgets as written, and the ledger that cannot be overdrawn."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attune_lab.campaign.budget import (
    US_PER_HOUR,
    Budget,
    BudgetExceeded,
    TunerBudget,
    bound_us,
    parse_budget,
    to_gpu_hours,
    to_us,
)
from attune_lab.contracts import UserError


def test_reads_multiples_and_gpu_hours() -> None:
    assert parse_budget("40x").multiple == 40
    assert parse_budget(" 2.5X ").multiple == Decimal("2.5")
    assert parse_budget("500").gpu_hours == parse_budget("500h").gpu_hours == 500
    assert parse_budget("40x").total_us(3) == 120
    assert parse_budget("0.5h").total_us(3) == US_PER_HOUR // 2


NO_BUDGETS = [
    *("", " ", "x", "h", "nan", "inf", "infx", "40y", "40xx", "4 0x", "1e9", "1.", ".5", "1,000", "\u0664\u0660x"),
    *("0", "0x", "0.0h", "-1", "-3x", "1000001x", "9999999999h", "9" * 400),
]


@pytest.mark.parametrize("text", NO_BUDGETS)
def test_refuses_anything_else_in_one_sentence(text: str) -> None:
    with pytest.raises(UserError) as refusal:
        parse_budget(text)
    assert "\n" not in str(refusal.value)
    assert "40x" in str(refusal.value)


@given(st.decimals(min_value="0.000000001", max_value=100_000, places=9), st.sampled_from(["x", "h", ""]))
def test_any_sensible_amount_is_read_exactly(amount: Decimal, unit: str) -> None:
    request = parse_budget(f"{amount:f}{unit}")
    assert (request.multiple if unit == "x" else request.gpu_hours) == amount


@given(st.integers(0, 10**18))
def test_gpu_hours_convert_back_to_the_microsecond(amount: int) -> None:
    # Two roundings of a float, each by at most 2**-53: exact up to 2**51 microseconds, some 600,000 GPU-hours.
    assert abs(to_us(to_gpu_hours(amount)) - amount) <= (amount / 2**52 + 0.5 if amount > 2**51 else 0)


@pytest.mark.parametrize("figure", [-1.0, float("nan"), float("inf")])
def test_nonsense_amounts_are_refused(figure: float) -> None:
    with pytest.raises(ValueError, match="is not"):
        to_us(figure)
    with pytest.raises(ValueError, match="is not"):
        bound_us(8, figure)


@given(
    st.integers(0, 10_000),
    st.lists(st.tuples(st.sampled_from(["reserve", "settle", "release"]), st.integers(0, 5_000), st.integers(0, 99))),
)
def test_spent_and_reserved_never_exceed_the_total(total: int, steps: list[tuple[str, int, int]]) -> None:
    budget, waiting = Budget(total), []
    for action, amount, pick in steps:
        if action == "reserve":
            fits = amount <= budget.free_us
            try:
                waiting.append(budget.reserve(amount, "run"))
                assert fits
            except BudgetExceeded:
                assert not fits
        elif waiting:
            reservation = waiting.pop(pick % len(waiting))
            before = budget.spent_us
            charged = budget.settle(reservation, amount) if action == "settle" else budget.release(reservation) or 0
            assert budget.spent_us == before + charged
            assert charged <= reservation.amount_us
        assert budget.spent_us >= 0
        assert budget.spent_us + budget.reserved_us + budget.free_us == total
        assert budget.free_us >= 0


def test_nothing_is_settled_twice() -> None:
    budget = Budget(10)
    reservation = budget.reserve(4, "run")
    assert budget.settle(reservation, 3) == 3
    with pytest.raises(ValueError, match="settled before"):
        budget.settle(reservation, 3)
    with pytest.raises(ValueError, match="negative"):
        budget.reserve(-1, "run")


def test_a_total_below_what_is_spent_is_refused() -> None:
    budget = Budget(10)
    budget.settle(budget.reserve(6, "run"), 6)
    with pytest.raises(BudgetExceeded):
        budget.set_total(5)
    budget.set_total(6)
    assert budget.free_us == 0


def test_a_tuner_sees_what_is_left_for_the_search() -> None:
    budget = Budget(10 * US_PER_HOUR)
    view = TunerBudget(budget, 0.5)
    held = budget.reserve(4 * US_PER_HOUR, "final runs")
    assert (view.total, view.left_for_search, view.run_cost) == (10, 6, 0.5)
    budget.release(held)
    assert view.left_for_search == 10
