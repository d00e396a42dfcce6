"""Wrappers of tuners can be worn together, in any order."""

from __future__ import annotations

from itertools import permutations

import pytest

from attune_lab.testing import TunerContract, UniformDraws
from attune_lab.workbench import wrapper_entry_points
from tests.baselines.small_task import small_task


class TestContract(TunerContract):
    @pytest.fixture(params=permutations(wrapper_entry_points(), 2), ids="+".join)
    def factory(self, request):
        inner, outer = (wrapper_entry_points()[name].load() for name in request.param)
        return outer(inner(UniformDraws))

    @pytest.fixture
    def task(self):
        return small_task(seed=3)
