import json
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attune_lab.contracts import UserError
from attune_lab.recipe import Recipe
from attune_lab.recipe.files import kept, load, shipped
from attune_lab.recipe.megatron import flag_words, stated
from attune_lab.recipe.registry import Setting, registry

SCRIPTS = Path(__file__).parent / "scripts"
READABLE = sorted(path for path in SCRIPTS.glob("*.*") if not path.stem.startswith("refused"))
CONTRADICTING = {"bf16", "fp16", "vpp", "layers_per_vstage", "pp_layout"}


def values(setting: Setting) -> st.SearchStrategy:
    """Values of a setting, None (removed) among them."""
    if setting.choices:
        chosen = st.sampled_from(setting.choices)
        legal = st.lists(chosen, min_size=1, max_size=3).map(tuple) if setting.kind == "list" else chosen
    else:
        legal = {
            "int": st.integers(0, 10**6),
            "float": st.floats(1e-8, 1e6, allow_nan=False),
            "bool": st.booleans(),
            "str": st.text("abcXYZ019_./([*])|+,-", min_size=1, max_size=12).filter(lambda s: not s.startswith("-")),
            "list": st.lists(st.text("abc12", min_size=1, max_size=4), min_size=1, max_size=3).map(tuple),
        }[setting.kind]
    return st.none() | legal.filter(lambda value: expressible(setting.key, value))


def expressible(key: str, value) -> bool:
    try:
        flag_words(key, value)
    except UserError:
        return False
    return True


keys = st.sampled_from(sorted(set(registry()) - CONTRADICTING))
edits = st.lists(keys, max_size=5, unique=True).flatmap(
    lambda ks: st.fixed_dictionaries({k: values(registry()[k]) for k in ks})
)
variables = st.dictionaries(
    st.sampled_from(["CUDA_DEVICE_MAX_CONNECTIONS", "NCCL_NVLS_ENABLE", "PYTORCH_CUDA_ALLOC_CONF", "NEW_ONE"]),
    st.none() | st.sampled_from(["0", "32", "expandable_segments:True", "a b", 'say "$x"']),
    max_size=3,
)


@pytest.mark.parametrize("path", READABLE, ids=lambda p: p.name)
def test_an_unchanged_recipe_gives_the_same_bytes(path):
    file = load(path)
    assert file.render(file.recipe) == path.read_bytes()


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(READABLE), edits, variables)
def test_an_edited_file_says_what_was_asked_or_refuses(path, changes, environment):
    file = load(path)
    asked = file.recipe.with_settings(changes).with_environment(environment)
    try:
        text = file.render(asked).decode()
    except UserError:
        return
    copy = path.parent / f".rendered-{os.getpid()}{path.suffix}"
    copy.write_bytes(text.encode())
    try:
        again = load(copy).recipe
    finally:
        copy.unlink()
    assert stated(again.settings) == stated(asked.settings)
    assert again.environment == asked.environment
    assert (again.carried, again.versions) == (asked.carried, asked.versions)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([entry.name for entry in shipped()]), edits, variables)
def test_shipped_recipes_take_every_edit_and_give_it_back(name, changes, environment):
    file = load(name)
    asked = file.recipe.with_settings(changes).with_environment(environment)
    text = file.render(asked)
    lines, before = text.decode().splitlines(), file.text.splitlines()
    untouched = [line for line in before if line in set(lines)]
    assert len(before) - len(untouched) <= len(changes) + len(environment)


def test_a_variable_used_elsewhere_stays_and_the_use_is_rewritten(tmp_path):
    path = tmp_path / "run.sh"
    path.write_text(
        "TP=2\nN=4\ntorchrun p.py --num-layers $N \\\n  --tensor-model-parallel-size $TP \\\n  --seed $TP\n"
    )
    file = load(path)
    text = file.render(file.recipe.with_settings({"tp": 8, "num_layers": 6})).decode()
    assert text == "TP=2\nN=6\ntorchrun p.py --num-layers $N \\\n  --tensor-model-parallel-size 8 \\\n  --seed $TP\n"


def test_an_edit_touches_its_lines_and_keeps_the_comments():
    file = load(SCRIPTS / "arrays_official.sh")
    changed = {"mbs": 4, "recompute_granularity": "selective", "bf16": None, "sequence_parallel": True}
    after = file.render(file.recipe.with_settings(changed)).decode().splitlines()
    before = file.text.splitlines()
    assert sorted(line.strip() for line in after if line not in before) == [
        "--micro-batch-size 4", "--recompute-granularity selective", "--sequence-parallel",
    ]  # fmt: skip
    assert [line.strip() for line in before if line not in after] == ["--micro-batch-size 2", "--bf16"]


def test_line_ends_and_a_missing_last_one_are_kept():
    file = load(SCRIPTS / "crlf_no_final_newline.sh")
    data = file.render(file.recipe.with_settings({"bf16": None, "mbs": 2, "tp": 2}).with_environment({"B": "1"}))
    assert data.count(b"\n") == data.count(b"\r\n")
    assert b"--micro-batch-size 2\r\n" in data
    assert data.endswith(b"--global-batch-size 8")


def test_what_an_edit_cannot_change_is_refused():
    file = load("glm-4.5")
    carried = Recipe(
        "megatron-lm", file.recipe.settings, file.recipe.environment, {"--other": "1"}, file.recipe.versions
    )
    with pytest.raises(UserError, match="--other would be None"):
        file.render(carried)
    with pytest.raises(UserError, match="no setting of the registry"):
        file.render(file.recipe.with_settings({"tensor": 2}))
    with pytest.raises(UserError, match="tp takes a value of type int"):
        file.render(file.recipe.with_settings({"tp": "two"}))


def test_files_that_are_no_recipe_are_refused_in_one_sentence(tmp_path):
    cases = {
        "empty.sh": (b"", "is empty"),
        "binary.sh": (b"torchrun\0--num-layers 2", "not UTF-8 text"),
        "latin.sh": (b"# \xe9\n", "not UTF-8 text"),
        "text.sh": (b"echo hello\n", "no command passes a Megatron-LM flag"),
    }
    for name, (data, message) in cases.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(UserError, match=message):
            load(tmp_path / name)
    with pytest.raises(UserError, match="is a folder"):
        load(tmp_path)
    with pytest.raises(UserError, match=r"did you mean glm-4\.5"):
        load("glm-4,5")


def test_a_huge_file_is_refused_without_reading_it(tmp_path):
    path = tmp_path / "huge.sh"
    with path.open("wb") as file:
        file.truncate(50_000_000)
    with pytest.raises(UserError, match="larger than 5 MB"):
        load(path)


def test_the_launch_line_asks_for_the_nodes_it_is_given(tmp_path):
    path = tmp_path / "run.sh"
    text = "NODES=${NODES:-16}\ntorchrun --nnodes $NODES --nproc_per_node 8 p.py --num-layers 2\n"
    path.write_text(text)
    file = load(path)
    assert file.gpus == 128
    moved = file.render(file.recipe, launcher={"nnodes": 4, "nproc_per_node": 8}).decode()
    assert moved == text.replace(":-16}", ":-4}")
    path.write_text(moved)
    assert load(path).gpus == 32


def test_a_launch_line_that_does_not_say_its_nodes_plainly_is_left_alone(tmp_path):
    path = tmp_path / "run.sh"
    path.write_text("torchrun --nnodes=$SLURM_NNODES --nproc_per_node=8 p.py --num-layers 2\n")
    file = load(path)
    assert file.gpus is None
    assert file.render(file.recipe, launcher={"nnodes": 4, "nproc_per_node": 4}) == file.data


@pytest.fixture
def including(tmp_path):
    """A script that includes one file beside it, names one that is not there, and one only for another TP."""
    script = tmp_path / "own" / "run.sh"
    script.parent.mkdir()
    (tmp_path / "common.sh").write_text("MBS=2\n")
    script.write_text(
        'TP=2\nsource "$(dirname "$0")/../common.sh"\nsource site.sh\n[ "$TP" = 4 ] && source large.sh\n'
        "torchrun pretrain_gpt.py --num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 64 "
        "--tensor-model-parallel-size $TP --micro-batch-size $MBS\n"
    )
    return script


def test_a_file_is_kept_with_what_it_includes(including):
    before = load(including)
    assert before.launch.included == {"../common.sh": "MBS=2\n", "site.sh": None}
    edited = before.recipe.with_settings({"tp": 1})
    rendered = before.render(edited)
    data = json.loads(json.dumps(before.to_json()))
    shutil.rmtree(including.parent.parent)
    again = kept(data)
    assert again == before
    assert again.render(edited) == rendered


@pytest.mark.parametrize("name", ["run.sh", "../secret.sh", "large.sh"])
def test_another_text_of_a_file_includes_no_other_file(including, name):
    before = load(including)
    (including.parent / "large.sh").write_text("MBS=8\n")
    with pytest.raises(UserError, match=r"line 2: it includes .*, which the file as it came in does not"):
        before.reread(before.text.replace("source", f"source {name}\nsource", 1))
    with pytest.raises(UserError, match=r"it includes large\.sh"):
        before.reread(before.text.replace("TP=2", "TP=4"))
