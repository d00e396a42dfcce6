from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attune_lab.contracts import UserError
from attune_lab.recipe.arithmetic import evaluate
from attune_lab.recipe.bash import read_bash
from attune_lab.recipe.files import load
from attune_lab.recipe.megatron import interpret

SCRIPTS = Path(__file__).parent / "scripts"
REFUSED = {
    "refused_positional": "line 3: the value $1 of --tensor-model-parallel-size is not set in this file",
    "refused_undecidable": "line 4: --recompute-granularity stands inside an 'if' whose test needs a run",
    "refused_two_commands": "lines 1 and 2 each start a training run",
    "refused_missing_array": "line 2: ${MODEL_ARGS[@]} is defined nowhere in this file",
    "refused_cycle": "line 4: the value $B of --num-layers is not set in this file",
    "refused_loop": "line 1: 'for' starts several training runs",
    "refused_arguments": "line 4: --num-layers stands inside an 'if' whose test needs a run because SIZE is $2",
    "refused_other_script": "line 3: the training command is not here but in examples/train_model.sh",
    "refused_flags_unused": "line 1: PARAMS holds flags of Megatron-LM but no command here uses them",
    "refused_other_spelling": "line 4: --micro_batch_size is the spelling of another tool",
    "refused_exit": "line 4: the script stops there ('exit') when it is started as it is",
    "refused_retired": "line 2: Megatron-LM no longer takes --checkpoint-activations",
}


def settings(text: str) -> dict:
    return dict(interpret(read_bash(text).words).settings)


def test_arrays_comments_defaults_and_a_logging_block():
    file = load(SCRIPTS / "arrays_official.sh")
    assert dict(file.recipe.settings) == {
        "num_layers": 16, "hidden": 1024, "heads": 16, "add_bias_linear": False, "masked_softmax_fusion": False,
        "mbs": 2, "gbs": 64, "seq_len": 2048, "lr": 1e-4, "bf16": True, "log_interval": 1, "load": "$1",
        "load_optim": False, "data_path": "$2",
    }  # fmt: skip
    assert file.gpus == 16
    assert dict(file.recipe.carried) == {}
    assert dict(file.recipe.environment) == {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}


def test_flags_in_strings_with_a_decidable_block_and_eval():
    file = load(SCRIPTS / "option_strings.sh")
    expected = {
        "tp": 4,
        "pp": 2,
        "seq_len": 4096,
        "gbs": 64,
        "sequence_parallel": True,
        "num_layers": 24,
        "hidden": 2048,
    }
    assert expected.items() <= dict(file.recipe.settings).items()
    assert dict(file.recipe.carried) == {"--tensorboard-dir": "logs/tp4"}
    assert file.gpus == 8


def test_environment_before_the_command():
    recipe = load(SCRIPTS / "environment_prefix.sh").recipe
    assert dict(recipe.environment) == {
        "NCCL_NVLS_ENABLE": "0", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "COMMENT": "best so far",
    }  # fmt: skip
    assert recipe.settings["recompute_modules"] == ("moe_act", "layernorm")
    assert recipe.settings["flex_backend"] == "deepep"
    assert recipe.settings["force_load_balancing"] is True


def test_a_sibling_file_is_included_and_what_lies_outside_is_not(tmp_path):
    file = load(SCRIPTS / "sourced_model.sh")
    assert file.recipe.settings["moe_layer_freq"] == "([0]*1+[1]*3)"
    assert file.recipe.settings["recompute_granularity"] == "full"
    assert file.recipe.carried["--max-tokens-per-gpu"] == "16384"
    with pytest.raises(UserError, match="included"):
        file.render(file.recipe.with_settings({"hidden": 512}))
    folder = tmp_path / "jobs" / "run"
    folder.mkdir(parents=True)
    (tmp_path / "outside.sh").write_text("MODEL_ARGS=(--num-layers 2)\n")
    (folder / "run.sh").write_text("source ../../outside.sh\ntorchrun p.py ${MODEL_ARGS[@]} --hidden-size 8\n")
    with pytest.raises(UserError, match="is defined nowhere"):
        load(folder / "run.sh")
    (folder / "again.sh").write_text("source again.sh\ntorchrun p.py --num-layers 2\n")
    with pytest.raises(UserError, match="include each other"):
        load(folder / "again.sh")


def test_srun_with_the_command_in_a_string_and_a_heredoc():
    file = load(SCRIPTS / "srun_shell.sh")
    assert file.recipe.settings["layers_per_vstage"] == 1
    assert "tp" not in file.recipe.settings
    assert file.gpus == 32
    assert dict(file.recipe.versions) == {"IMAGE": "nvcr.io/nvidia/pytorch:25.09-py3"}


def test_nested_defaults_appended_arrays_and_tests():
    recipe = load(SCRIPTS / "nested_defaults.sh").recipe
    assert dict(recipe.settings) == {
        "num_layers": 2, "tp": 2, "lr": 1e-4, "use_distributed_optimizer": True, "sequence_parallel": True,
        "moe_layer_freq": "([0]*1+[1]*1)",
    }  # fmt: skip


def test_array_elements_that_hold_a_flag_and_its_value():
    file = load(SCRIPTS / "quoted_groups.sh")
    assert dict(file.recipe.settings) == {
        "num_layers": 8, "hidden": 1024, "tp": 1, "bf16": True, "manual_gc": True, "fp8": "hybrid",
        "fp8_amax_history_len": 1024, "overlap_grad_reduce": True, "use_distributed_optimizer": True, "mock_data": True,
        "vocab_size": 32000,
    }  # fmt: skip
    edited = file.render(file.recipe.with_settings({"fp8": "e4m3", "tp": 2, "mock_data": None})).decode()
    assert '"--fp8-format e4m3"' in edited
    assert "TP_SIZE=2" in edited
    assert "--mock-data" not in edited


def test_an_elif_chain_and_a_command_behind_and():
    file = load(SCRIPTS / "chained.sh")
    assert dict(file.recipe.settings) == {"num_layers": 2, "bf16": True}
    assert dict(file.recipe.carried) == {"$EXTRA_ARGS": ""}


@pytest.mark.parametrize(("name", "message"), REFUSED.items())
def test_what_cannot_be_known_is_refused_in_one_sentence(name, message):
    with pytest.raises(UserError) as caught:
        load(SCRIPTS / f"{name}.sh")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--num-layers 2 --bf16 --fp16", "'--bf16' and '--fp16'"),
        ("--num-layers-per-virtual-pipeline-stage 2 --num-virtual-stages-per-pipeline-rank 2", "contradict"),
        ("--num-layers 2 --deepspeed", "hands the run to DeepSpeed"),
        ("--num-layers two", "takes a value of type int, not 'two'"),
        ("--num-layers", "needs a value"),
        ("--num-layers 2 3", "takes one value"),
        ("--num-layers 2 --bf16 true", "takes no value"),
        ("--num-layers 2 --lr nan", "takes a value of type float"),
        ("--num-layers 2 --moe-token-dispatcher-type fast", "takes allgather or alltoall"),
        ("--num-layers $(nproc)", "is not set in this file"),
        ('--num-layers "2', 'the quote " is never closed'),
        ("--num-layers ${X", "'{' is never closed"),
    ],
)
def test_wrong_flags_name_the_line(flags, message):
    with pytest.raises(UserError) as caught:
        settings(f"torchrun pretrain_gpt.py {flags}\n")
    assert message in str(caught.value)
    assert "line" in str(caught.value)


def test_of_a_repeated_flag_of_logging_the_last_counts():
    assert settings("torchrun p.py --num-layers 2 --log-interval 1 --log-interval 5")["log_interval"] == 5


def test_a_flag_with_two_values_that_train_differently_is_refused_with_both_lines():
    with pytest.raises(UserError, match=r"lines 1 and 2 .*--num-layers 2.*--num-layers 3"):
        settings("torchrun p.py --num-layers 2 \\\n  --num-layers 3")


def test_a_check_for_what_the_caller_sets_does_not_end_the_script():
    text = 'if [ -z "${FOLDER}" ]; then\n  echo set it\n  exit 1\nfi\ntorchrun p.py --num-layers 2 --load ${FOLDER}/x\n'
    assert settings(text) == {"num_layers": 2, "load": "${FOLDER}/x"}


def test_a_tool_that_prepares_data_is_no_training_run():
    assert settings("python mix.py --split train\ntorchrun p.py --num-layers 2\n") == {"num_layers": 2}


@pytest.mark.parametrize(
    "value",
    [
        """$(python -c "print('8'); print(\\"it's\\")")""",
        """$(cd "$(dirname "$(readlink -f "it's here")")" && pwd)""",
        """$(awk '{print "("}' f)""",
    ],
)
def test_quotes_in_substituted_commands_are_matched(value):
    assert settings(f"X={value}\ntorchrun p.py --num-layers 2 --save $X\n") == {"num_layers": 2, "save": value}


def test_an_array_replaced_by_its_own_text():
    text = 'ARGS=(--num-layers 2)\nARGS="${ARGS[@]} --bf16"\nCMD="torchrun p.py $ARGS"\nsrun bash -c "numactl $CMD"\n'
    assert settings(text) == {"num_layers": 2, "bf16": True}


def test_two_calls_of_a_function_are_two_runs_and_arguments_shift():
    run = 'run() {\n  local name=$1\n  shift\n  torchrun p.py --num-layers 2 "$@" | tee $name.log\n}\n'
    assert settings(run + "run base --bf16\n") == {"num_layers": 2, "bf16": True}
    with pytest.raises(UserError, match="lines 6 and 7 each start a training run"):
        settings(run + "run base\nrun other --bf16\n")


def test_the_launcher_list_of_variables_is_edited_in_place():
    file = load(SCRIPTS / "low" / "submitted.sh")
    edited = file.render(file.recipe.with_environment({"CUDA_DEVICE_MAX_CONNECTIONS": "8"}))
    assert edited == file.data.replace(rb"CONNECTIONS\": \"1", rb"CONNECTIONS\": \"8")
    with pytest.raises(UserError, match="line 17: CUDA_DEVICE_MAX_CONNECTIONS stands in a list for the launcher"):
        file.render(file.recipe.with_environment({"CUDA_DEVICE_MAX_CONNECTIONS": None}))


def test_a_launcher_for_several_sizes():
    file = load(SCRIPTS / "sized_by_case.sh")
    assert dict(file.recipe.settings) == {
        "num_layers": 12, "hidden": 1024, "heads": 16, "tp": 2, "eval_iters": -1, "untie_embeddings": True,
        "moe_layer_freq": "([0]*1+[1]*11)", "bf16": True, "fp8_recipe": "delayed", "fp8": "hybrid",
        "sequence_parallel": True, "tp_comm_overlap": True, "manual_gc": True,
    }  # fmt: skip
    assert dict(file.recipe.environment) == {"FAST_PATH": "1"}
    assert dict(file.recipe.carried) == {}
    assert file.gpus == 8


def test_a_submitted_job_with_its_model_one_folder_up():
    file = load(SCRIPTS / "low" / "submitted.sh")
    assert dict(file.recipe.settings) == {
        "num_layers": 6, "hidden": 512, "heads": 8, "moe_layer_freq": "[0,0,1,1,1,1]", "num_experts": 8,
        "tp": 1, "pp": 2,
    }  # fmt: skip
    assert set(file.recipe.carried) == {"--colocate", "--use-dynamic-batch-size", "--engine-sizes"}
    assert dict(file.recipe.environment) == {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}


def test_a_function_that_starts_the_run_through_a_quoted_script():
    file = load(SCRIPTS / "function_call.sh")
    assert dict(file.recipe.settings) == {"tp": 4, "num_layers": 8, "bf16": True}
    assert dict(file.recipe.carried) == {"--partition": "type:layer|embedding"}
    assert file.gpus == 32


def test_a_job_in_a_here_document():
    file = load(SCRIPTS / "heredoc_job.sh")
    assert dict(file.recipe.settings) == {"tp": 4, "num_layers": 2, "manual_gc": True}
    assert dict(file.recipe.environment) == {"NCCL_NVLS_ENABLE": "0"}
    edited = file.render(file.recipe.with_settings({"num_layers": 4})).decode()
    assert [line for line in edited.splitlines() if line not in file.text.splitlines()] == [
        '    --tensor-model-parallel-size $TP --num-layers 4 --manual-gc" 2>&1 | tee log'
    ]


def test_exponential_variables_and_deep_nesting_are_refused():
    doubling = (
        "A0=xxxxxxxxxx\n" + "".join(f"A{i + 1}=$A{i}$A{i}\n" for i in range(40)) + "torchrun p.py --num-layers $A40\n"
    )
    with pytest.raises(UserError, match="expand to more than"):
        settings(doubling)
    with pytest.raises(UserError, match="nested too deeply"):
        settings("torchrun p.py --num-layers " + "${A:-" * 60 + "2" + "}" * 60 + "\n")
    with pytest.raises(UserError, match="functions call each other"):
        settings("f() { g; }\ng() { f; }\nf\ntorchrun p.py --num-layers 2\n")
    with pytest.raises(UserError, match="more than 10000 rounds"):
        settings("for ((i=0; i<9; i=i)); do x=1; done\ntorchrun p.py --num-layers 2\n")
    assert settings("x=" + "$(echo " * 300 + ")" * 300 + "\ntorchrun p.py --num-layers 2\n") == {"num_layers": 2}
    with pytest.raises(UserError, match="nested too deeply"):
        settings("if [ a ]; then\n" * 60 + "torchrun p.py --num-layers 2\n" + "fi\n" * 60)


def test_nothing_is_executed(tmp_path):
    mark = tmp_path / "mark"
    text = f"X=$(touch {mark})\n`touch {mark}`\ntouch {mark}\ntorchrun p.py --num-layers 2 --save $(touch {mark})\n"
    assert settings(text)["num_layers"] == 2
    assert not mark.exists()


numbers = st.integers(-50, 50)
expressions = st.recursive(
    numbers.map(lambda n: f"({n})"),
    lambda inner: st.tuples(inner, st.sampled_from(["+", "-", "*"]), inner).map(lambda t: f"({t[0]}{t[1]}{t[2]})"),
    max_leaves=8,
)


@given(expressions)
def test_arithmetic_is_that_of_integers(expression):
    plain = evaluate(expression, lambda name: None)
    assert plain == sum_of(expression)


def sum_of(expression: str) -> int:
    """An independent reading: fold the fully bracketed expression from the inside."""
    stack: list = []
    number = ""
    for char in expression:
        if char.isdigit() or (char == "-" and (not stack or stack[-1] == "(") and not number):
            number += char
        elif char == "(":
            stack.append("(")
        elif char == ")":
            if number:
                stack.append(int(number))
                number = ""
            items = []
            while stack[-1] != "(":
                items.append(stack.pop())
            stack.pop()
            if len(items) == 3:
                right, operator, left = items
                items = [{"+": left + right, "-": left - right, "*": left * right}[operator]]
            stack.append(items[0])
        else:
            stack.append(char)
    return stack[0]


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("TP*8", 32),
        ("$TP * (2+3) % 7", 6),
        ("-7/2", -3),
        ("7/0", None),
        ("TP > 2", 1),
        ("(TP > 4) ? 8 : TP == 4 && !0", 1),
        ("TP >", None),
        ("UNSET+1", None),
        ("", None),
    ],
)
def test_arithmetic_with_variables(expression, value):
    assert evaluate(expression, {"TP": 4}.get) == value


@given(st.text(alphabet="ab${}[]()'\"\\`=:-@ \n#<>|&;*1", max_size=60))
def test_any_text_is_read_or_refused_as_user_error(text):
    with suppress(UserError):
        settings(text + "\ntorchrun p.py --num-layers 2\n")
