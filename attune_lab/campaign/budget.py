"""The budget: what a user asks for, and the ledger that never lets it be exceeded.

The ledger counts whole GPU-microseconds, so sums do not depend on their order and two campaigns that did the
same work have equal ledgers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal

from attune_lab.contracts import UserError

US_PER_HOUR = 3_600_000_000
"""GPU-microseconds in a GPU-hour."""

_MAX_MULTIPLE = Decimal(100_000)
_MAX_GPU_HOURS = Decimal(1_000_000_000)


class BudgetExceeded(Exception):
    """A reservation that could overshoot the budget was refused."""


@dataclass(frozen=True)
class BudgetRequest:
    """A budget as the user wrote it; exactly one of the two figures is set.

    Attributes:
        text: as written.
        multiple: how many 8-step runs of the baseline it pays for (``40x``).
        gpu_hours: GPU-hours (``500`` or ``500h``).
    """

    text: str
    multiple: Decimal | None = None
    gpu_hours: Decimal | None = None

    def total_us(self, run_cost_us: int) -> int:
        """The budget in GPU-microseconds, given what one baseline run costs; fractions are cut off."""
        if self.multiple is not None:
            return int(self.multiple * run_cost_us)
        assert self.gpu_hours is not None
        return int(self.gpu_hours * US_PER_HOUR)


def parse_budget(text: str) -> BudgetRequest:
    """The budget in ``40x`` (baseline runs), ``500`` or ``500h`` (GPU-hours).

    Raises:
        UserError: not such a text, zero, or too large to be meant.
    """
    hint = "write baseline runs such as 40x, or GPU-hours such as 500 or 500h"
    match = re.fullmatch(r"([0-9]{1,20}(?:\.[0-9]{1,9})?)([xh]?)", text.strip(), flags=re.IGNORECASE)
    if match is None:
        raise UserError(f"--budget {text!r} is not a budget: {hint}")
    amount, unit = Decimal(match[1]), match[2].lower()
    if amount == 0:
        raise UserError(f"--budget {text!r} leaves nothing to spend: {hint}")
    limit = _MAX_MULTIPLE if unit == "x" else _MAX_GPU_HOURS
    if amount > limit:
        raise UserError(f"--budget {text!r} is above the limit of {limit:,}{unit or 'h'}: {hint}")
    if unit == "x":
        return BudgetRequest(text.strip(), multiple=amount)
    return BudgetRequest(text.strip(), gpu_hours=amount)


def to_us(gpu_hours: float) -> int:
    """GPU-hours as whole GPU-microseconds, nearest.

    Raises:
        ValueError: negative, infinite or not a number.
    """
    if not (math.isfinite(gpu_hours) and gpu_hours >= 0):
        raise ValueError(f"{gpu_hours} is not an amount of GPU-hours")
    return round(gpu_hours * US_PER_HOUR)


def bound_us(n_gpus: int, seconds: float) -> int:
    """What ``n_gpus`` cost in ``seconds``, in GPU-microseconds rounded up.

    Raises:
        ValueError: seconds negative, infinite or not a number.
    """
    if not (math.isfinite(seconds) and seconds >= 0):
        raise ValueError(f"{seconds} is not a duration in seconds")
    return math.ceil(n_gpus * seconds * 1_000_000)


def to_gpu_hours(amount_us: int) -> float:
    """GPU-microseconds as GPU-hours, for print."""
    return amount_us / US_PER_HOUR


@dataclass(frozen=True)
class Reservation:
    """A part of the budget set aside until it is settled. Amount in GPU-microseconds."""

    number: int
    amount_us: int
    purpose: str


@dataclass
class Budget:
    """The ledger: ``spent + reserved <= total`` holds after every call, in GPU-microseconds."""

    total_us: int
    spent_us: int = 0
    _open: dict[int, Reservation] = field(default_factory=dict)
    _issued: int = 0

    @property
    def reserved_us(self) -> int:
        """What is set aside and not settled."""
        return sum(r.amount_us for r in self._open.values())

    @property
    def free_us(self) -> int:
        """What can still be reserved."""
        return self.total_us - self.spent_us - self.reserved_us

    def reserve(self, upper_bound_us: int, purpose: str) -> Reservation:
        """Set ``upper_bound_us`` aside.

        Raises:
            ValueError: a negative bound.
            BudgetExceeded: it is more than what is free.
        """
        if upper_bound_us < 0:
            raise ValueError(f"{purpose}: a reservation of {upper_bound_us} is negative")
        if upper_bound_us > self.free_us:
            raise BudgetExceeded(
                f"{purpose} may need {to_gpu_hours(upper_bound_us):.4g} GPU-hours and "
                f"{to_gpu_hours(self.free_us):.4g} are left"
            )
        self._issued += 1
        reservation = Reservation(self._issued, upper_bound_us, purpose)
        self._open[reservation.number] = reservation
        return reservation

    def settle(self, reservation: Reservation, actual_us: int) -> int:
        """Close a reservation and return what is charged for it, in GPU-microseconds.

        A cluster that uses more than the bound it was given has broken its contract: the campaign is charged
        the bound, never more, and the caller reports the overrun.

        Raises:
            ValueError: settled before, or a negative amount.
        """
        if actual_us < 0 or reservation.number not in self._open:
            raise ValueError(f"{reservation.purpose}: cannot settle {actual_us} (negative, or settled before)")
        del self._open[reservation.number]
        charged = min(actual_us, reservation.amount_us)
        self.spent_us += charged
        return charged

    def release(self, reservation: Reservation) -> None:
        """Give a reservation back unused."""
        self.settle(reservation, 0)

    def set_total(self, total_us: int) -> None:
        """Replace a provisional total by the final one.

        Raises:
            BudgetExceeded: more than that is already spent or reserved.
        """
        if total_us < self.spent_us + self.reserved_us:
            raise BudgetExceeded(
                f"{to_gpu_hours(self.spent_us + self.reserved_us):.4g} GPU-hours are spent or reserved "
                f"and the budget is {to_gpu_hours(total_us):.4g}"
            )
        self.total_us = total_us


class TunerBudget:
    """The budget as a tuner may see it (`attune_lab.contracts.BudgetView`): it can read the ledger, not write it.

    Attributes:
        run_cost: GPU-hours of one run of the baseline.
    """

    def __init__(self, budget: Budget, run_cost: float) -> None:
        self._figures: Callable[[], tuple[int, int]] = lambda: (budget.total_us, budget.free_us)
        self.run_cost = run_cost

    @property
    def total(self) -> float:
        """The campaign's budget. GPU-hours."""
        return to_gpu_hours(self._figures()[0])

    @property
    def left_for_search(self) -> float:
        """What is neither spent nor reserved for the finalists. GPU-hours."""
        return to_gpu_hours(self._figures()[1])
