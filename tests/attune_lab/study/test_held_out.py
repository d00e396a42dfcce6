"""A study cannot learn from the models it tunes, whatever their recipes are called."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from small_study import RECIPE, study_text

from attune_lab.contracts import UserError
from attune_lab.lessons.context import context_of
from attune_lab.lessons.learn import learn_campaign
from attune_lab.lessons.records import Records, update_records
from attune_lab.recipe.files import load
from attune_lab.study.jobs import campaign_jobs
from attune_lab.study.spec import load_study, stored_study
from attune_lab.tuning import TuneRequest, tune_recipe
from simulator.hardware import parse_cluster

CLUSTER = "8xH200-SXM5-141GB"
TUNERS = "[{name: attune, label: wiser, options: {lessons: lessons.json}}]"


@pytest.fixture(scope="module")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with one campaign of the small recipe, and one that says it is of another model."""
    folder = tmp_path_factory.mktemp("evidence")
    tune_recipe(TuneRequest(str(RECIPE), CLUSTER, "12x", seed=5, out=folder / "c", logs=False))
    learnt = learn_campaign(folder / "c")
    other = learnt.model_copy(
        update={"digest": "f" * 64, "model": "other", "traits": learnt.traits.model_copy(update={"build": "gqa other"})}
    )
    update_records(folder / "own.json", lambda _: Records(campaigns=(learnt, other)))
    update_records(folder / "others.json", lambda _: Records(campaigns=(other,)))
    return folder


def written(folder: Path, evidence: Path, recipe: str | None = None, more: str = "") -> Path:
    """A study in ``folder`` whose tuner knows ``evidence``."""
    (folder / "lessons.json").write_bytes(evidence.read_bytes())
    text = study_text(TUNERS, more)
    if recipe is not None:
        (folder / "mine.sh").write_text(recipe)
        text = text.replace(str(RECIPE), "mine.sh")
    (folder / "study.yaml").write_text(text)
    return folder / "study.yaml"


def test_evidence_of_other_models_is_welcome_and_named(evidence: Path, tmp_path: Path) -> None:
    spec = load_study(written(tmp_path, evidence / "others.json"))
    pinned = spec.tuners[0].options["lessons"]
    assert isinstance(pinned, dict)
    assert (pinned["file"], pinned["models"], pinned["campaigns"]) == (str(tmp_path / "lessons.json"), ["other"], 1)
    assert stored_study(json.dumps(spec.model_dump(mode="json")).encode()) == spec
    job = next(iter(campaign_jobs(spec, tmp_path / "out")))
    assert dict(job.request().options)["lessons"] == pinned
    assert job.identity["options"]["lessons"]["sha256"] == pinned["sha256"]
    assert tune_recipe(job.request())["options"]["lessons"] == pinned


RENAMED = RECIPE.read_text()


@pytest.mark.parametrize(
    "recipe",
    [
        None,
        RENAMED,
        RENAMED.replace("--num-layers 32", "--num-layers 16"),
        RENAMED.replace("--vocab-size 128256", "--vocab-size 32000"),
        RENAMED.replace("--seq-length 4096", "--seq-length 8192").replace("embeddings 4096", "embeddings 8192"),
        RENAMED.replace("--num-layers 32", '--num-layers "${LAYERS:-32}"'),
    ],
    ids=["itself", "renamed", "fewer layers", "another vocabulary", "longer sequences", "spelled otherwise"],
)
def test_evidence_of_the_studys_own_model_is_refused(evidence: Path, tmp_path: Path, recipe: str | None) -> None:
    with pytest.raises(UserError, match="held_out: false") as refused:
        load_study(written(tmp_path, evidence / "own.json", recipe))
    assert "attune lessons export" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_evidence_from_the_studys_worlds_is_refused(evidence: Path, tmp_path: Path) -> None:
    file = written(tmp_path, evidence / "others.json", more="worlds: {first: 4, count: 3}\n")
    with pytest.raises(UserError, match="in the simulated worlds of this study"):
        load_study(file)
    file.write_text(file.read_text().replace("first: 4", "first: 6"))
    assert load_study(file).held_out


def test_a_study_may_say_that_it_is_not_held_out(evidence: Path, tmp_path: Path) -> None:
    spec = load_study(written(tmp_path, evidence / "own.json", more="held_out: false\n"))
    assert not spec.held_out
    assert not json.loads(spec.model_dump_json())["held_out"]


def test_evidence_that_grew_since_the_study_was_read_is_refused(evidence: Path, tmp_path: Path) -> None:
    spec = load_study(written(tmp_path, evidence / "others.json"))
    (tmp_path / "lessons.json").write_bytes((evidence / "own.json").read_bytes())
    job = next(iter(campaign_jobs(spec, tmp_path / "out")))
    with pytest.raises(UserError, match="has changed since it was chosen"):
        tune_recipe(job.request())
    assert not (job.folder / "campaign.db").exists()


def test_a_model_known_by_another_name_is_the_same_model() -> None:
    cluster = parse_cluster("64xH200-SXM5-141GB")
    recipe = load("glm-4.5").recipe
    cut = recipe.with_settings({"num_layers": 12, "moe_layer_freq": "[0]*3+[1]*9"})
    known, unknown = context_of(recipe, cluster), context_of(cut, cluster)
    assert known.model == "glm-4.5"
    assert unknown.model == known.traits["build"] == unknown.traits["build"]


def test_a_bad_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(UserError, match=r"lessons\.json"):
        load_study(written(tmp_path, tmp_path / "bad.json"))
