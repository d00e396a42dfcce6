"""The table of signs: a symptom for every figure beyond its limit, and what it costs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from attune_lab.diagnosis.figures import CLOCKS


@dataclass(frozen=True)
class Symptom:
    """One symptom.

    Attributes:
        name: word of the catalog's vocabulary.
        evidence: a clause with the figure or the line behind it.
        at_stake: fraction of the step that removing it could save at most; 1 where there is no step without.
    """

    name: str
    evidence: str
    at_stake: float


@dataclass(frozen=True)
class Sign:
    """A symptom read off one metric.

    Attributes:
        symptom: word of the catalog's vocabulary.
        metric: name among the metrics.
        limit: the symptom shows beyond this value.
        sentence: evidence for a person; ``{x}`` is the metric, other names are variables too.
        above: whether beyond means above.
        stake: the metric that is the fraction of the step at stake; by default the sign's own.
        share: factor on it.
    """

    symptom: str
    metric: str
    limit: float
    sentence: str
    above: bool = True
    stake: str = ""
    share: float = 1.0

    def read(self, variables: Mapping[str, Any]) -> Symptom | None:
        """The symptom, where its metric is known and lies beyond the limit."""
        value = variables.get(self.metric)
        if value is None or not (value > self.limit if self.above else value < self.limit):
            return None
        stake = self.share * float(variables.get(self.stake or self.metric, 0.0))
        return Symptom(self.symptom, self.sentence.format(x=value, v=variables), min(max(stake, 0.0), 1.0))


TINY = 1e-6
"""Share of a figure that is no fraction of a step: such symptoms name a circumstance and come last."""

GUESS = 0.25
"""Weight of what is only bounded by the settings: whatever was seen comes before it."""

# Limits. A communication or a bubble below 2 % of the step cannot repay a change that must clear a noise band of about
# 1 %, and nothing is compute-bound while something else could save 5 %. Memory is borderline above 90 % of capacity
# because routing and fragmentation move the peak by several per cent, and low below 75 % because the next cheaper
# level of recomputation typically needs more than the difference.
# Of equal stakes the earlier sign comes first: a cause before what it causes.
SIGNS = (
    Sign("overlap_not_happening", "serial_dp_frac", 0.02,
         "data-parallel overlap is on, but one hardware queue lets nothing run beside it: {x:.1%} of the step waits"),
    Sign("exposed_tp_comm", "exposed_tp_frac", 0.02, "{x:.1%} of the step waits for tensor-parallel collectives"),
    Sign("exposed_ep_a2a", "exposed_ep_frac", 0.02, "{x:.1%} of the step waits for token dispatch and combine"),
    Sign("exposed_dp_comm", "exposed_dp_frac", 0.02, "{x:.1%} of the step waits for data-parallel collectives"),
    Sign("exposed_cp_comm", "exposed_cp_frac", 0.02, "{x:.1%} of the step waits for context-parallel exchange"),
    Sign("exposed_pp_p2p", "exposed_pp_frac", 0.01, "{x:.1%} of the step waits for pipeline sends"),
    Sign("pipeline_bubble", "bubble_frac", 0.03, "{x:.1%} of the step is pipeline bubble"),
    Sign("launch_bound", "host_gap_frac", 0.03, "{x:.1%} of the step is launch gaps"),
    Sign("stage_imbalance", "stage_imbalance", 1.05, "the slowest stage takes {x:.2f}x the mean",
         stake="imbalance_frac"),
    Sign("expert_imbalance", "skew_frac", 0.02,
         "{x:.1%} of the step: the busiest expert rank is expected to take {v[expert_skew]:.2f}x the mean"),
    Sign("low_gemm_efficiency", "gemm_of_sound", CLOCKS, "GEMMs reach {v[gemm_eff]:.0%} of peak, {x:.0%} of what large "
         "ones do", above=False, stake="gemm_loss_frac"),
    Sign("full_recompute_in_use", "full_recompute", 0.5, "whole layers are recomputed", stake="replay_frac"),
    Sign("recompute_heavy", "recompute_level", 0.5, "recomputation is at level {x:.0f} of 3", stake="replay_frac"),
    Sign("borderline_memory", "mem_peak_frac", 0.9, "the peak is {x:.0%} of memory", stake="retry_frac"),
    Sign("compute_bound", "largest_loss_frac", 0.05, "{v[compute_frac]:.0%} of the step computes, nothing else loses "
         "more than {x:.1%}", above=False, stake="compute_frac", share=0.5),  # a narrower format halves it at most
    Sign("moe_slow", "exposed_ep_frac", 0.1, "{x:.1%} of the step waits for experts", share=0.5),
    Sign("low_memory_use", "mem_peak_frac", 0.75, "the peak is {x:.0%} of memory", above=False, stake="room_frac"),
    Sign("fragmentation", "frag_frac", 0.05, "{x:.1%} of memory is fragmented", share=0.05),
    Sign("many_experts", "num_experts", 31, "the model has {x:.0f} experts", share=TINY),
    Sign("small_microbatch", "tokens_per_expert", 256, "an expert sees {x:.0f} tokens", above=False,
         stake="gemm_loss_frac", share=0.5),
    Sign("long_sequence", "seq_len", 8191, "sequences have {x:.0f} tokens", share=TINY / 1e3),
)  # fmt: skip


def signs_of(variables: Mapping[str, Any]) -> Iterator[Symptom]:
    """The symptoms whose sign shows among ``variables``, in the order of the table."""
    clear = {name: value for name, value in variables.items() if not _unusable(value)}
    note = " (expected by the cost model)" if variables.get("by_estimate") else ""
    note = " (at most, by the settings)" if variables.get("by_settings") else note
    weight = GUESS if variables.get("by_settings") else 1.0
    for sign in SIGNS:
        symptom = sign.read(clear)
        if symptom is not None:
            yield Symptom(symptom.name, symptom.evidence + note, weight * symptom.at_stake)


def _unusable(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)
