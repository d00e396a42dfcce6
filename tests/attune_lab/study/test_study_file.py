"""The study file: what it says, and everything that is wrong with it at once, in one sentence."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML
from small_study import RECIPE, study, study_text

from attune_lab.contracts import UserError
from attune_lab.study.jobs import campaign_jobs, oracle_jobs
from attune_lab.study.spec import StudySpec, load_study, parse_study, stored_study


def refusal(text: str) -> str:
    with pytest.raises(UserError) as refused:
        parse_study(text)
    message = str(refused.value)
    assert "\n" not in message
    return message


def test_short_forms() -> None:
    spec = study("[uniform, {name: attune, label: bare, options: {without: [use-catalog]}}]", "gate: off\n")
    assert [(tuner.label, tuner.name) for tuner in spec.tuners] == [("uniform", "uniform"), ("bare", "attune")]
    assert spec.tuners[1].options == {"without": ["use-catalog"]}
    assert not spec.gate
    assert list(study(more="worlds: 3\n").worlds.seeds) == [0, 1, 2]
    assert spec.clusters == ("8xH200-SXM5-141GB",)
    assert {"uniform", "attune"} <= {tuner.name for tuner in study("all").tuners}


def test_recipe_files_are_found_from_the_study(tmp_path: Path) -> None:
    (tmp_path / "mine.sh").write_bytes(RECIPE.read_bytes())
    file = tmp_path / "study.yaml"
    file.write_text(study_text().replace(str(RECIPE), "mine.sh"))
    (recipe,) = load_study(file).recipes
    assert (recipe.name, recipe.source) == ("mine", str(tmp_path / "mine.sh"))
    assert recipe.digest == study().recipes[0].digest


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("[uniform, attune]", "[unifrom]", "tuners[0].name: no tuner is called 'unifrom'; did you mean uniform?"),
        ("[uniform, attune]", "[uniform+repai]", "no wrapper is called 'repai'"),
        ("[uniform, attune]", "[uniform, {name: attune, label: Uniform}]", "names Uniform and uniform more than once"),
        ("[uniform, attune]", "[]", "tuners is empty; name at least one"),
        ("[uniform, attune]", "[{nam: uniform}]", "tuners[0].nam is no key of a study; did you mean name?"),
        ("[uniform, attune]", "[{name: uniform, label: ../x}]", "tuners[0].label: '../x' is no name"),
        ("[uniform, attune]", "5", "tuners: 5 is refused"),
        ("budget: 12x", "budget: 0.5x", "budget: 0.5x is less than one run of the baseline"),
        ("budget: 12x", "budget: much", "budget: 'much' is not a budget"),
        ("budget: 12x", "budgets: 12x", "budget is missing; budgets is no key of a study; did you mean budget?"),
        ("count: 2", "count: 0", "worlds.count: 0 is refused"),
        ("8xH200", "9xH200", "clusters[0]: cluster '9xH200"),
        ("name: small", "name: small\nrules: {repeats: always}", "rules.repeats: 'always' is refused"),
        ("name: small", "name: small\nconditions: {noise: -1}", "conditions.noise: -1 is refused"),
        ("name: small", "name: small\nconditions: {nois: 1}", "did you mean noise?"),
        ("name: small", "name: small\napprovals: [fp88]", "approvals: nothing called fp88"),
        ("name: small", "name: small\ntime_limit_s: .nan", "time_limit_s: nan is refused"),
        (str(RECIPE), "glm-4.55", "recipes[0]: no file and no shipped recipe"),
        ("name: small", "name: [", "is not YAML"),
        ("[uniform, attune]", "[{name: uniform, options: {a: .nan}}]", "tuners[0].options: a number must be finite"),
        (f"['{RECIPE}']", "[{name: x, source: glm-4.5, digest: '0'}]", "recipes[0]: write a name from attune recipes"),
        ("name: small", "name: small\nmemory_limit_gib: 1.0e+300", "memory_limit_gib: 1e+300 is refused"),
        ("name: small", "name: small\ntime_limit_s: 1.0e+300", "time_limit_s: 1e+300 is refused"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(before: str, after: str, said: str) -> None:
    text = study_text()
    assert before in text
    assert said in refusal(text.replace(before, after))


def test_all_mistakes_are_named_at_once() -> None:
    text = study_text("[unifrom, uniform]", "gate: perhaps\n").replace("12x", "0x").replace("count: 2", "count: 0")
    assert all(part in refusal(text) for part in ("budget", "worlds.count", "tuners[0]", "gate"))


@pytest.mark.parametrize(
    "text", ["", "3", "[1]", "- a\n- b", "\t", "? [a]\n: b", "a: &x [*x]", "!!python/object:os.system {}"]
)
def test_what_is_no_study_is_refused(text: str) -> None:
    refusal(text)


@pytest.mark.parametrize("key", ["name", "tuners", "conditions", "surplus"])
def test_aliases_of_aliases_are_refused_before_they_swell(key: str) -> None:
    levels = ["&b0 [1, 1, 1, 1, 1, 1, 1, 1]", *(f"&b{n} [{', '.join([f'*b{n - 1}'] * 8)}]" for n in range(1, 12))]
    assert "more than 100000 values" in refusal(f"{key}: [{', '.join(levels)}]\n")


def test_many_tuners_are_told_apart_quickly_and_wrapped_once() -> None:
    many = ", ".join(f"{{name: uniform, label: r{number}}}" for number in range(300))
    assert len(study(f"[{many}]").tuners) == 300
    assert "is no name" in refusal(study_text(f"[uniform{'+repair' * 2000}]"))


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path, tmp_path / "missing.yaml", binary):
        with pytest.raises(UserError, match=path.name):
            load_study(path)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(key=st.sampled_from(sorted(StudySpec.model_fields)), value=_JSON)
def test_any_value_of_any_key_is_used_or_refused_in_one_sentence(key: str, value: object) -> None:
    written = YAML(typ="safe").load(study_text())
    written[key] = value
    buffer = io.StringIO()
    YAML(typ="safe").dump(written, buffer)
    try:
        spec = parse_study(buffer.getvalue())
    except UserError:
        refusal(buffer.getvalue())
    else:
        assert stored_study(spec.model_dump_json().encode()) == spec


def test_every_tuner_meets_every_world_of_every_scenario_in_a_folder_of_its_own() -> None:
    spec = study("[uniform, attune, {name: attune, label: 'a, b (c)'}]", "worlds: 4\n")
    jobs = list(campaign_jobs(spec, Path("out")))
    assert len(jobs) == len({job.folder for job in jobs}) == 12
    assert [job.world for job in jobs] == sorted(job.world for job in jobs)
    assert not list(oracle_jobs(spec, Path("out")))
