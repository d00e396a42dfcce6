"""Settings in force, read from the arguments of a job."""

import enum
import sys
from argparse import ArgumentParser
from types import ModuleType, SimpleNamespace

import pytest
import torch

from attune_lab.signals import megatron
from attune_lab.signals.megatron_settings import megatron_settings

Backend = enum.Enum("Backend", "flash fused unfused local auto")


def parser():
    """Some of the arguments of Megatron-LM, declared as there.

    Source: NVIDIA/Megatron-LM megatron/training/arguments.py.
    """
    made = ArgumentParser(allow_abbrev=False)
    made.add_argument("--tensor-model-parallel-size", type=int, default=1)
    made.add_argument("--swiglu", action="store_true")
    made.add_argument("--bf16", action="store_true")
    made.add_argument("--disable-bias-linear", action="store_false", dest="add_bias_linear")
    made.add_argument("--untie-embeddings-and-output-weights", action="store_true")
    made.add_argument("--attention-backend", type=lambda name: Backend[name], default=Backend.auto)
    made.add_argument("--main-grads-dtype", default="fp32")
    made.add_argument("--lr", type=float)
    made.add_argument("--moe-layer-freq", default=1)
    return made


def test_arguments_become_settings():
    arguments = vars(parser().parse_args(["--swiglu", "--lr", "1", "--disable-bias-linear"]))
    arguments |= {"main_grads_dtype": torch.float32, "moe_layer_freq": [0, 1, 1], "data_parallel_size": 4}
    found = megatron_settings(arguments | {"world_size": 8}, parser())
    assert found == {
        "tp": 1, "swiglu": True, "bf16": False, "add_bias_linear": False, "untie_embeddings": False,
        "attention_backend": "auto", "main_grads_dtype": "fp32", "lr": 1.0, "moe_layer_freq": "0 1 1",
        "dp": 4, "world_size": 8,
    }  # fmt: skip


@pytest.fixture
def training(monkeypatch):
    """Stands for Megatron-LM's training package; ``train`` notes what it is called with."""
    calls = []
    modules = {name: ModuleType(name) for name in ("megatron", "megatron.training")}
    modules |= {f"megatron.training.{name}": ModuleType(name) for name in ("training", "arguments")}
    modules["megatron.training"].get_args = lambda: SimpleNamespace(iteration=10, train_iters=30, lr=1.0, swiglu=True)
    modules["megatron.training.training"].train = lambda *arguments: calls.append(arguments) or (30, 0.0)
    modules["megatron.training.arguments"].add_megatron_arguments = lambda _: parser()
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return SimpleNamespace(module=modules["megatron.training.training"], calls=calls)


def test_training_is_recorded_inside_alone(training, monkeypatch):
    asked = []

    class Watching:
        def __init__(self, *arguments, **named):
            asked.append((arguments, named))

        def __enter__(self):
            return SimpleNamespace(forward_step=lambda function: ("watched", function))

        def __exit__(self, *error):
            return None

    monkeypatch.setattr(megatron, "recording", Watching)
    train = training.module.train
    with megatron.recorded_training("out.json"):
        assert training.module.train("forward step", "model", "optimizer", "scheduler", "data") == (30, 0.0)
    assert training.module.train is train
    assert training.calls == [(("watched", "forward step"), "model", "optimizer", "scheduler", "data")]
    ((arguments, named),) = asked
    assert arguments == ("model", "optimizer", "out.json")
    assert (named["first"], named["last"]) == (11, 30)
    assert named["effective"]["swiglu"] is True
