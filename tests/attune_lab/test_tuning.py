"""The folder of a campaign: found again by the same command, another for another recipe."""

import pytest

from attune_lab.tuning import TuneRequest, default_folder


@pytest.mark.parametrize(
    ("one", "other"), [("glm-4.5", "glm-4.6"), ("llama-3.1-405b", "llama-3.2"), ("a/x.sh", "a/y.sh")]
)
def test_recipes_have_folders_of_their_own(one, other):
    cluster, budget = "8xH200", "40x"
    assert default_folder(TuneRequest(one, cluster, budget)) != default_folder(TuneRequest(other, cluster, budget))
    assert default_folder(TuneRequest(one, cluster, budget)) == default_folder(TuneRequest(one, cluster, budget))


def test_the_suffix_of_a_file_is_no_part_of_the_name():
    assert default_folder(TuneRequest("my.run.sh", "8xH200", "40x")).name.startswith("my.run-")
