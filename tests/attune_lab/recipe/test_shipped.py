import pytest

from attune_lab.recipe.constraints import errors
from attune_lab.recipe.files import load, shipped
from attune_lab.recipe.registry import registry
from attune_lab.recipe.shape import shape_of
from simulator.hardware import parse_cluster
from simulator.models import models, parameters

CLUSTERS = {"H100": "H100-SXM5-80GB", "B200": "B200-SXM-180GB", "GB200": "GB200-NVL72", "MI355X": "MI355X"}
ENTRIES = shipped()
DEFAULTS = (
    "llama-3.1-405b glm-4.5 mixtral-8x22b minimax-m2 deepseek-v3 qwen3-235b-a22b glm-4.5-air kimi-k2 gpt-oss-120b glm-5"
)


def test_the_known_models_have_a_default_recipe_each():
    names = [entry.name for entry in ENTRIES]
    assert set(DEFAULTS.split()) <= set(names)
    assert len(names) == len(set(names))


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda e: e.name)
def test_a_shipped_recipe_loads_round_trips_and_states_its_source(entry):
    file = load(entry.name)
    assert file.render(file.recipe) == file.data
    assert entry.source.split()[0] in file.text
    assert file.gpus in (None, entry.gpus)
    assert {"mcore", "te", "torch"} <= set(file.recipe.versions)
    assert not file.recipe.carried
    assert not file.recipe.get("force_load_balancing")
    assert not file.recipe.get("mock_data")


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda e: e.name)
def test_a_shipped_recipe_has_the_shape_of_its_model(entry):
    shape, model = shape_of(load(entry.name).recipe), models()[entry.model]
    different = {name for name in vars(model) if getattr(shape, name) != getattr(model, name)}
    # Megatron-LM has no flag for query and key norms over all heads at once, which MiniMax-M2 has.
    assert different <= {"name", "max_seq", "head_dim" if shape.attention == "mla" else "name"} | (
        {"qk_norm"} if entry.model == "minimax-m2" else set()
    )
    assert parameters(shape).total == pytest.approx(parameters(model).total, rel=1e-5)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda e: e.name)
def test_a_shipped_recipe_starts_where_it_was_published_for(entry):
    cluster = parse_cluster(f"{entry.gpus}x{CLUSTERS[entry.accelerator]}")
    assert errors(load(entry.name).recipe, cluster) == []


def test_only_registry_flags_are_used():
    used = {key for entry in ENTRIES for key in load(entry.name).recipe.settings}
    assert used <= set(registry())
