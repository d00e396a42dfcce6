"""Weights to start a short run from in which attention has learnt something.

From random weights attention hardly matters for 20 steps, so that wrong positions, masks or scales do not show. After
`STEPS` steps of training on other samples of the same language they do, from the first step on.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from filelock import FileLock

from attune_lab.trainer.config import TrainerConfig
from attune_lab.trainer.mesh import Mesh
from attune_lab.trainer.state import checkpoint, make_state, save
from attune_lab.trainer.step import run_step

STEPS = 300
MODEL = (
    "num_layers", "hidden", "heads", "kv_groups", "ffn", "vocab_size", "num_experts", "topk", "moe_ffn",
    "shared_expert_size", "score_function", "expert_bias", "qk_layernorm", "add_bias_linear", "softmax_type",
    "rotary_base", "norm_epsilon", "untie_embeddings", "mtp_num_layers", "init_method_std", "seq_len",
)  # fmt: skip
"""Settings that warm weights depend on: those of the model. Runs that differ in others start from the same file."""


def warm_start(config: TrainerConfig, folder: Path, steps: int = STEPS) -> Path:
    """The checkpoint, weights alone, that runs of a model may start from; trained when it is not in the folder yet.

    Half a minute on one core for a model of the suite, 3 to 5 MB. Ranks that ask together wait for the first. A folder
    serves one version of the trainer: the file's name tells the model and the training apart, not the code.
    """
    settings = training(config, steps)
    digest = hashlib.sha256(json.dumps(settings.model_dump(mode="json"), sort_keys=True).encode()).hexdigest()
    path = folder / f"warm-{digest[:16]}.pt"
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock")):
        if not path.exists():
            state = make_state(settings, Mesh.build(settings))
            for _ in range(steps):
                run_step(state)
            save(checkpoint(state) | {"step": 0, "mean": {}, "square": {}}, path)
    return path


def training(config: TrainerConfig, steps: int) -> TrainerConfig:
    """How a configuration's model is warmed: on one rank, in float32, on samples of a seed of its own."""
    sequences = 16
    return TrainerConfig(
        **{name: getattr(config, name) for name in MODEL},
        attention_backend="unfused",
        bf16=False,
        mbs=sequences,
        gbs=sequences,
        data_seed=0,
        samples_per_epoch=sequences * steps,
        train_iters=steps,
        lr=4e-3,
        min_lr=4e-4,
        lr_warmup_iters=20,
        lr_decay_iters=steps,
    )
