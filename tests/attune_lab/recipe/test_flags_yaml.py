from pathlib import Path

import pytest

from attune_lab.contracts import UserError
from attune_lab.recipe.files import load
from attune_lab.recipe.flags_yaml import read_yaml

SCRIPTS = Path(__file__).parent / "scripts"


def test_both_parts_are_read_and_variables_resolved():
    recipe = load(SCRIPTS / "two_parts.yaml").recipe
    assert dict(recipe.settings) == {
        "tp": 2, "pp": 4, "sequence_parallel": True, "num_layers": 24, "moe_layer_freq": "([0]*1+[1]*23)",
        "recompute_modules": ("moe_act", "layernorm"), "split": "99,1,0", "data_path": "${DATA_PATH}",
    }  # fmt: skip
    assert recipe.environment["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
    assert recipe.carried == {"--wandb-exp-name": "demo-TP2-${COMMENT}"}


def test_edits_keep_every_other_byte():
    file = load(SCRIPTS / "two_parts.yaml")
    changes = {"tp": 8, "pp": 2, "overlap_grad_reduce": True, "sequence_parallel": None, "vpp": 3}
    changes["recompute_modules"] = ("mlp",)
    text = file.render(file.recipe.with_settings(changes).with_environment({"NEW": "a b"}))
    before, after = file.text.splitlines(), text.decode().splitlines()
    assert [line.strip() for line in after if line not in before] == [
        "NEW: 'a b'", "--tensor-model-parallel-size: 8", "--pipeline-model-parallel-size: 2   # four stages",
        "--num-virtual-stages-per-pipeline-rank: 3", "--overlap-grad-reduce: true", "--recompute-modules: mlp",
    ]  # fmt: skip
    assert "--sequence-parallel: true" not in text.decode()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("A: &a 1\nMODEL_ARGS:\n  --num-layers: *a\n", "anchors, aliases and tags"),
        ("MODEL_ARGS:\n  --num-layers: !!int 2\n", "anchors, aliases and tags"),
        ("MODEL_ARGS:\n  --num-layers: 2\n  --num-layers: 3\n", "lines 2 and 3 both set"),
        ("MODEL_ARGS:\n  --num-layers: 2\nMODEL_ARGS:\n  --seed: 1\n", "stands twice"),
        ("MODEL_ARGS:\n  --num-layers: {a: 1}\n", "is nested"),
        ("- 1\n", "is a mapping"),
        ("MODEL_ARGS: [1\n", "not valid YAML"),
        ("ENV_VARS:\n  A: 1\n", "no part of the file holds Megatron-LM flags"),
        ("MODEL_ARGS:\n" + "# x\n" * 100_000, "longer than"),
        ("MODEL_ARGS:\n  --num-layers: " + "[" * 5000, "YAML"),
    ],
)
def test_what_a_recipe_has_no_use_for_is_refused(text, message):
    with pytest.raises(UserError) as caught:
        read_yaml(text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unset_variable_is_refused_where_a_number_is_needed(tmp_path):
    path = tmp_path / "r.yaml"
    path.write_text("MODEL_ARGS:\n  --num-layers: 2\n  --tensor-model-parallel-size: ${TP}\n")
    with pytest.raises(UserError, match="line 3: the value"):
        load(path)
