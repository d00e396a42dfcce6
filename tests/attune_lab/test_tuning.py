"""The folder of a campaign: found again by the same command, another for another recipe."""

import pytest

from attune_lab.cli.tune import _options
from attune_lab.contracts import UserError
from attune_lab.tuning import TuneRequest, default_folder
from attune_lab.workbench import tuner_factory


@pytest.mark.parametrize(
    ("one", "other"), [("glm-4.5", "glm-4.6"), ("llama-3.1-405b", "llama-3.2"), ("a/x.sh", "a/y.sh")]
)
def test_recipes_have_folders_of_their_own(one, other):
    cluster, budget = "8xH200", "40x"
    assert default_folder(TuneRequest(one, cluster, budget)) != default_folder(TuneRequest(other, cluster, budget))
    assert default_folder(TuneRequest(one, cluster, budget)) == default_folder(TuneRequest(one, cluster, budget))


def test_one_cluster_written_two_ways_has_one_folder():
    short, full = (
        default_folder(TuneRequest("glm-4.5", cluster, "40x")) for cluster in ("64xH200", "64xH200-SXM5-141GB")
    )
    assert short == full


def test_another_policy_has_a_folder_of_its_own():
    usual, named, claude = (
        default_folder(TuneRequest("glm-4.5", "8xH200", "40x", options=options))
        for options in ((), (("policy", "catalog"),), (("policy", "claude"),))
    )
    assert usual == named != claude


def test_the_suffix_of_a_file_is_no_part_of_the_name():
    assert default_folder(TuneRequest("my.run.sh", "8xH200", "40x")).name.startswith("my.run-")


class _Entry:
    def __init__(self, thing: object) -> None:
        self._thing = thing

    def load(self) -> object:
        if isinstance(self._thing, Exception):
            raise self._thing
        return self._thing


@pytest.fixture
def installed(monkeypatch):
    wrappers = {"louder": _Entry(lambda factory: lambda task: f"{factory(task)}!")}
    monkeypatch.setattr("attune_lab.workbench.tuner_entry_points", lambda: {"plain": _Entry(lambda task: task)})
    monkeypatch.setattr("attune_lab.workbench.wrapper_entry_points", lambda: wrappers)
    return wrappers


def test_a_tuner_is_wrapped_by_the_names_after_it(installed):
    assert tuner_factory("plain+louder+louder")("task") == "task!!"


@pytest.mark.parametrize(
    ("name", "said"),
    [("plane", "no such tuner; did you mean plain"), ("plain+loud", "no such wrapper"), ("plain+", "no such wrapper")],
)
def test_an_unknown_tuner_or_wrapper_is_refused(installed, name, said):
    with pytest.raises(UserError, match=said):
        tuner_factory(name)


def test_a_wrapper_that_does_not_import_is_said_so(installed):
    installed["broken"] = _Entry(ImportError("no module"))
    with pytest.raises(UserError, match=r"does not import \(ImportError: no module\)"):
        tuner_factory("plain+broken")


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (["sampler=CmaEsSampler"], {"sampler": "CmaEsSampler"}),
        (["k=3", "without=[a, b]"], {"k": 3, "without": ["a", "b"]}),
        (["empty="], {"empty": None}),
    ],
)
def test_options_of_a_tuner_are_plain_yaml(words, options):
    assert dict(_options(words, policy=None)) == options


@pytest.mark.parametrize("word", ["sampler", "=3", "k=[1", "k=2020-01-01", "k=!!python/object:os.system x", "k=.nan"])
def test_an_option_that_cannot_be_read_is_refused(word):
    with pytest.raises(UserError, match="--option"):
        _options([word])


def test_an_option_is_given_once():
    with pytest.raises(UserError, match="twice"):
        _options(["policy=catalog"], policy="catalog")
