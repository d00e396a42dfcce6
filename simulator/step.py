"""One training step of a batch of jobs: time, its breakdown and memory.

Shape letters:  B = jobs,  P = pipeline stages.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

BREAKDOWN = (
    "compute",  # GEMMs, attention, memory-bound operations, recomputation
    "exposed_tp", "exposed_ep", "exposed_cp", "exposed_pp", "exposed_dp",  # communication not hidden
    "bubble",  # pipeline warm-up, drain and stage imbalance
    "optimizer", "host",  # optimizer step; launch gaps and host stalls
)  # fmt: skip


@dataclass(frozen=True)
class StepEstimate:
    """What `simulate_step` returns. Shapes: (B,) unless said.

    Attributes:
        step_time_s: one optimizer step, steady state.
        breakdown_s: seconds by part; keys are `BREAKDOWN`, the parts sum to ``step_time_s``.
        peak_allocated_bytes: per pipeline stage, shape (B, P), 0 beyond a job's last stage.
        peak_reserved_bytes: the same with allocator overhead, CUDA context and communicator buffers: what
            must fit in the accelerator's memory, shape (B, P).
        memory_bytes: parts of the allocated peak at the fullest stage: ``weights``, ``gradients``,
            ``optimizer``, ``activations``, ``temporary``, ``buffers``.
        tokens_per_s_per_gpu, model_flops_per_s_per_gpu, mfu: see `simulator.metrics`.
        diagnostics: ratios a tuner's diagnosis reads: ``gemm_eff``, ``bubble_frac``, ``stage_imbalance``,
            ``host_gap_frac``, ``tokens_per_expert``, ``model_state_frac``, ``frag_frac``, ``mem_peak_frac``.
    """

    step_time_s: Floats
    breakdown_s: dict[str, Floats]
    peak_allocated_bytes: Floats
    peak_reserved_bytes: Floats
    memory_bytes: dict[str, Floats]
    tokens_per_s_per_gpu: Floats
    model_flops_per_s_per_gpu: Floats
    mfu: Floats
    diagnostics: dict[str, Floats]
