"""What a user may name to approve a change of numerics."""

import pytest

from attune_lab.contracts import UserError
from attune_lab.parameters import approvable, settled_approvals


@pytest.mark.parametrize("name", approvable())
def test_every_approvable_name_means_itself_and_with_its_group(name):
    assert settled_approvals([name, f"precision.{name}"]) == (name,)


@pytest.mark.parametrize(
    ("approval", "words"),
    [("fp88", "fp8"), ("moe.fp8", "belongs to precision"), ("precision.lr", "belongs to optimizer"), ("", "known: fp8"),
     ("precision.fp9", "fp8"), ("precision.", "known"), ("qqqq", "known")],
)  # fmt: skip
def test_anything_else_is_refused_with_what_it_may_have_meant(approval, words):
    with pytest.raises(UserError, match=words):
        settled_approvals([approval])


def test_a_setting_can_be_named_by_itself_or_after_its_group():
    assert settled_approvals(["exp_avg_dtype", "precision.exp_avg_dtype", "optimizer.lr"]) == ("exp_avg_dtype", "lr")
