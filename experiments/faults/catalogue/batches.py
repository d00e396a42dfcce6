"""Batches that are not those of the baseline: samples lost, repeated, in another order, or cut."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch.distributed as dist

from attune_lab.trainer.config import TrainerConfig
from attune_lab.trainer.data import Batch, Row
from attune_lab.trainer.state import Checkpoint, State
from experiments.faults.catalogue.registry import declare

Indices = Callable[[TrainerConfig, int, int, int], list[int]]

GROUP = "data"
NO_REPORT = "A class of errors in the code of users; no report was found."
EPOCH_ENDS = 2
"""Step in which the order of samples begins again."""
RESUMED_AFTER = 10
"""Steps done when the run was stopped and resumed."""
WHEN_RESUMED = "Nothing happens until the run is resumed: its own 20 steps are sound."


def one_ahead(original: Indices, config: TrainerConfig, step: int, dp_rank: int, microbatch: int) -> list[int]:
    """Ranks above 0 drop their last micro-batch of the epoch, so they are one ahead in the next."""
    ahead = int(dp_rank > 0 and step >= EPOCH_ENDS)
    return original(config, step, dp_rank, microbatch + ahead)


declare(
    "F030",
    "Ranks enter the next epoch at different steps",
    group=GROUP,
    source="NVIDIA/Megatron-LM#7299",
    patches={"data.sample_indices": one_ahead},
    layout={"dp": 2},
)


def of_rank_0(original: Indices, config: TrainerConfig, step: int, dp_rank: int, microbatch: int) -> list[int]:
    """Every data-parallel rank reads the samples of rank 0."""
    return original(config, step, 0, microbatch)


declare(
    "F031",
    "Data-parallel ranks read the same samples",
    group=GROUP,
    source="vllm-project/speculators#427",
    patches={"data.sample_indices": of_rank_0},
    layout={"dp": 2},
)


def from_the_start(original: Indices, config: TrainerConfig, step: int, dp_rank: int, microbatch: int) -> list[int]:
    """The run, resumed after some steps, reads from the first sample again."""
    return original(config, step - RESUMED_AFTER if step > RESUMED_AFTER else step, dp_rank, microbatch)


declare(
    "F032",
    "Resumed run begins its data again",
    group=GROUP,
    source="NVIDIA-NeMo/Megatron-Bridge#3503",
    patches={"data.sample_indices": from_the_start},
)


def shuffled_anew(original: Callable[[TrainerConfig, int], int], config: TrainerConfig, place: int) -> int:
    """The run, resumed after some steps, goes on in another order of the samples."""
    resumed = place >= RESUMED_AFTER * config.gbs
    return original(config.model_copy(update={"data_seed": config.data_seed + 1}) if resumed else config, place)


declare(
    "F033",
    "Resumed run shuffles its data anew",
    group=GROUP,
    source="NVIDIA-NeMo/Megatron-Bridge#4565",
    patches={"data.sample_at": shuffled_anew},
)


def without_moments(original: Callable[..., Checkpoint], start: Checkpoint, config: TrainerConfig) -> Checkpoint:
    """A checkpoint is restored without Adam's moments."""
    return {**original(start, config), "mean": {}, "square": {}}


declare(
    "F034a",
    "Moments lost when a run resumes",
    group=GROUP,
    source="NVIDIA/Megatron-LM#1570",
    patches={"state.restored": without_moments},
    note=WHEN_RESUMED,
)


def moments_lost(original: Callable[[State, float], float], state: State, norm: float) -> float:
    """The run was resumed after some steps, and Adam's moments began at 0 again."""
    if state.step == RESUMED_AFTER:
        for part in state.optimizer.slices:
            part.mean.zero_()
            part.square.zero_()
    return original(state, norm)


declare(
    "F034b",
    "Run goes on with moments lost at a resume",
    group=GROUP,
    source="NVIDIA/Megatron-LM#1570",
    patches={"step.apply_update": moments_lost},
)


def first_microbatch(original: Indices, config: TrainerConfig, step: int, dp_rank: int, microbatch: int) -> list[int]:
    """All micro-batches of a step are the first one."""
    return original(config, step, dp_rank, 0)


declare(
    "F102",
    "Same samples in every micro-batch of a step",
    group=GROUP,
    source="NVIDIA/Megatron-LM@d98e8a64 megatron/core/pipeline_parallel/schedules.py (one iterator per micro-batch)",
    patches={"data.sample_indices": first_microbatch},
    note=NO_REPORT,
)


def last_stage_ahead(
    original: Callable[..., Batch], config: TrainerConfig, step: int, dp_rank: int, microbatch: int
) -> Batch:
    """The last pipeline stage takes its labels from the next micro-batch."""
    last = dist.get_rank() // (config.world_size // config.pp) == config.pp - 1
    return original(config, step, dp_rank, microbatch + last)


declare(
    "F103",
    "Pipeline stages read different micro-batches",
    group=GROUP,
    source="NVIDIA/Megatron-LM@d98e8a64 megatron/core/pipeline_parallel/schedules.py (an iterator per model chunk)",
    patches={"data.load": last_stage_ahead},
    layout={"pp": 2, "vpp": 2},
    note=NO_REPORT,
)


def half_as_many(original: Callable[[State], int], state: State) -> int:
    """A step has half as many micro-batches, so that the global batch is half as large."""
    return original(state) // 2


declare(
    "F104",
    "Global batch that follows from a changed layout",
    group="objective",
    source="deepspeedai/DeepSpeed docs/_pages/config-json.md (train_batch_size)",
    patches={"step.microbatches": half_as_many},
    note=NO_REPORT,
)


def cut_in_two(original: Callable[[TrainerConfig, int], Row], config: TrainerConfig, index: int) -> Row:
    """Every sample is two sequences of half the context."""
    documents = original(config, index)
    return 2 * documents + (np.arange(len(documents)) >= config.seq_len // 2)


declare(
    "F105",
    "Half the context, twice the sequences",
    group="objective",
    source="NVIDIA/Megatron-LM@d98e8a64 megatron/training/arguments.py (--seq-length)",
    patches={"data.document_ids": cut_in_two},
    note=NO_REPORT,
)
