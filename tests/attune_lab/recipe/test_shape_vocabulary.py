import pytest

from attune_lab.contracts import UserError
from attune_lab.recipe import Recipe
from attune_lab.recipe.effective import effective
from attune_lab.recipe.files import load
from attune_lab.recipe.shape import shape_of
from simulator.hardware import parse_cluster
from tests.attune_lab.recipe.recipes_for_tests import dense


@pytest.mark.parametrize("name", ["glm-4.5", "deepseek-v3", "mixtral-8x22b", "minimax-m2", "gpt-oss-120b"])
def test_a_known_model_needs_no_vocabulary_size(name):
    recipe = load(name).recipe
    without = recipe.with_settings({"vocab_size": None, "padded_vocab_size": None})
    assert shape_of(without).name == shape_of(recipe).name != "custom"
    assert effective(without, parse_cluster("1024xH100-SXM5-80GB"))["vocab_padded"] > 0


def test_another_model_needs_it():
    with pytest.raises(UserError, match="does not state --vocab-size"):
        shape_of(dense(vocab_size=None, num_layers=31))


def test_a_full_width_norm_without_a_flag_is_no_other_model():
    recipe = load("minimax-m2").recipe
    assert shape_of(recipe.with_settings({"qk_layernorm": None})).name == "minimax-m2"


def test_other_architectures_are_refused_by_their_flag():
    recipe = dense()
    hybrid = Recipe(recipe.stack, recipe.settings, recipe.environment, {"--hybrid-layer-pattern": "M*M*"})
    with pytest.raises(UserError, match="--hybrid-layer-pattern describes an architecture"):
        shape_of(hybrid)
