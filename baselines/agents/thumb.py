"""Public rules of thumb: which lever for which bottleneck, and how a lever is moved without breaking divisibility."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from baselines.agents.cards import Facts

Values = Mapping[str, Any]
Changes = dict[str, Any]


@dataclass(frozen=True)
class Rule:
    """A lever for a part of the step.

    Attributes:
        part: of a run's breakdown.
        moves: (parameter, step) once or twice; a step is ``up``, ``down``, ``on`` or ``=choice``.
        saves: fraction of the part that it is expected to save. A round figure for ordering, not a measurement.
        why: the rule, as said to a colleague.
    """

    part: str
    moves: tuple[tuple[str, str], ...]
    saves: float
    why: str


# Sources: TP inside the node and no more than needed, pipeline across nodes, a bubble of (p-1)/(v m), interleaving and
# micro-batch size: arXiv 2104.04473, sections 3 and 5. Recomputation only as far as memory needs it: arXiv 2205.05198.
# Overlaps, dispatchers, fusions and CUDA graphs: NVIDIA/Megatron-LM@megatron/core/transformer/moe/README.md and
# docs/source/user-guide. Memory growth by the formulas in `memory`.
RULES = (
    Rule("exposed_tp", (("tp", "down"),), 0.5, "a smaller tensor-parallel group exchanges less"),
    Rule("exposed_tp", (("tp_comm_overlap", "on"),), 0.4, "tensor-parallel exchange can hide behind GEMMs"),
    Rule("exposed_tp", (("tp", "down"), ("pp", "up")), 0.4, "stages instead of tensor parallelism keep memory"),
    Rule("exposed_ep", (("ep_overlap", "on"),), 0.6, "token exchange can hide behind another micro-batch"),
    Rule("exposed_ep", (("dispatcher", "=flex:deepep"),), 0.35, "DeepEP exchanges tokens with fewer copies"),
    Rule("exposed_ep", (("dispatcher", "=flex:hybridep"),), 0.35, "HybridEP exchanges tokens with fewer copies"),
    Rule("exposed_ep", (("ep", "down"),), 0.3, "a smaller expert-parallel group stays inside the node"),
    Rule("exposed_ep", (("dispatcher", "=alltoall"),), 0.3, "all-to-all sends less than all-gather"),
    Rule("exposed_ep", (("shared_expert_overlap", "on"),), 0.1, "shared experts can run during the exchange"),
    Rule("exposed_cp", (("cp", "down"),), 0.6, "a smaller context-parallel group exchanges less"),
    Rule("exposed_pp", (("vpp", "down"),), 0.4, "fewer virtual stages send less often"),
    Rule("exposed_pp", (("pp", "down"),), 0.4, "fewer stages send less often"),
    Rule("exposed_dp", (("overlap_grad_reduce", "on"),), 0.7, "gradients can be reduced during the backward pass"),
    Rule("exposed_dp", (("overlap_param_gather", "on"),), 0.4, "parameters can be gathered during the forward pass"),
    Rule("exposed_dp", (("bucket_size", "=200000000"),), 0.2, "larger buckets use the network better"),
    Rule("bubble", (("pp", "down"),), 0.5, "fewer stages idle less at both ends"),
    Rule("bubble", (("vpp", "up"),), 0.4, "interleaving divides the bubble"),
    Rule("bubble", (("mbs", "down"),), 0.4, "more micro-batches dilute the bubble"),
    Rule("bubble", (("pp", "down"), ("recompute", "up")), 0.35, "recomputation pays for fewer stages"),
    Rule("host", (("cuda_graph", "up"),), 0.5, "CUDA graphs launch many kernels at once"),
    Rule("host", (("mbs", "up"),), 0.3, "larger micro-batches launch fewer kernels"),
    Rule("host", (("manual_gc", "on"),), 0.2, "garbage collection at fixed steps keeps ranks together"),
    Rule("compute", (("fp8", "=blockwise"),), 0.25, "FP8 doubles the peak of GEMMs"),
    Rule("compute", (("fp8", "=mxfp8"),), 0.25, "FP8 doubles the peak of GEMMs"),
    Rule("compute", (("grouped_gemm", "on"),), 0.1, "one grouped GEMM beats many small ones"),
    Rule("compute", (("recompute", "down"),), 0.06, "what is not computed twice is saved"),
    Rule("compute", (("mbs", "up"),), 0.05, "larger micro-batches make larger GEMMs"),
    Rule("compute", (("etp", "down"),), 0.05, "whole experts make larger GEMMs"),
    Rule("compute", (("tp", "down"),), 0.04, "less tensor parallelism makes larger GEMMs"),
    Rule("compute", (("tp", "down"), ("recompute", "up")), 0.03, "recomputation pays for less tensor parallelism"),
    Rule("compute", (("moe_permute_fusion", "on"),), 0.02, "a fused permutation moves tokens once"),
    Rule("compute", (("moe_router_fusion", "on"),), 0.01, "a fused router launches less"),
    Rule("compute", (("cross_entropy_fusion", "on"),), 0.01, "a fused loss keeps fewer logits"),
)  # fmt: skip

FULL_RECOMPUTE_SAVES = 0.25
"""Of a step in which whole layers are computed again: one of the four passes. **Source:** arXiv 2205.05198."""


def levers(values: Values, shares: Mapping[str, float], card: Facts) -> list[dict[str, Any]]:
    """Levers that can be moved from ``values``, the largest expected saving first.

    Each has ``moves``, ``saves`` (fraction of the step) and ``why``. ``shares`` is the fraction of the step by part;
    without any, every part counts the same.
    """
    found = []
    for rule in RULES:
        saves = rule.saves * (shares.get(rule.part, 0.0) if shares else 1.0)
        if rule.moves == (("recompute", "down"),) and values.get("recompute") == "full":
            saves *= FULL_RECOMPUTE_SAVES / rule.saves
        if moved(rule.moves, values, card):
            found.append({"moves": [list(move) for move in rule.moves], "saves": round(saves, 5), "why": rule.why})
    return sorted(found, key=lambda lever: -lever["saves"])


def moved(moves: Any, values: Values, card: Facts) -> Changes:
    """What ``moves`` change, with what must follow for the sizes to divide; empty where it cannot be."""
    changes: Changes = {}
    for key, step in moves:
        for target in _targets(key, step, values, card):
            tried = completed({**changes, key: target}, values, card)
            if step.startswith("=") or key in ("tp", "pp") or divides({**values, **tried}, card):
                changes = {**changes, key: target}
                break
        else:
            return {}
    changes = completed(changes, values, card)
    return changes if divides({**values, **changes}, card) else {}


def _targets(key: str, step: str, values: Values, card: Facts) -> list[Any]:
    """Values that ``step`` may lead to, nearest first."""
    choices = card["parameters"].get(key, {}).get("choices", [])
    value = values.get(key)
    if step.startswith("="):
        return [choice for choice in choices if str(choice) == step[1:] and choice != value]
    if step == "on":
        return [True] if True in choices and value is False else []
    if value not in choices:
        return []
    place = choices.index(value)
    return list(choices[place + 1 :] if step == "up" else choices[:place][::-1])


def divides(values: Values, card: Facts) -> bool:
    """Whether the sizes go together: the divisibility rules of Megatron-LM's argument checks."""
    m, gpus = card["model"], card["cluster"]["gpus"]
    tp, pp, cp, ep, etp, vpp, mbs = (values.get(key) or 1 for key in ("tp", "pp", "cp", "ep", "etp", "vpp", "mbs"))
    if gpus % (tp * pp * cp) or m["heads"] % tp or gpus % (pp * ep * etp) or m["num_layers"] < pp * vpp:
        return False
    if m["gbs"] % (mbs * gpus // (tp * pp * cp)) or (m.get("num_experts") or 1) % ep:
        return False
    micro_batches = m["gbs"] // (mbs * gpus // (tp * pp * cp))
    return vpp == 1 or (pp > 1 and micro_batches % pp == 0)


def completed(changes: Changes, values: Values, card: Facts) -> Changes:
    """``changes`` with the least that must follow: smaller sizes where they no longer divide, overlaps that need it."""
    done = dict(changes)

    def now(key: str) -> Any:
        return done.get(key, values.get(key) or 1)

    gpus, gbs = card["cluster"]["gpus"], card["model"]["gbs"]
    if now("pp") == 1 and now("vpp") > 1 and "vpp" not in changes:
        done["vpp"] = 1
    if "ep" in values and "ep" not in changes and gpus % (now("pp") * now("ep") * now("etp")):
        fitting = [ep for ep in _sizes(card, "ep") if ep <= now("ep") and gpus % (now("pp") * ep * now("etp")) == 0]
        done |= {"ep": fitting[-1]} if fitting else {}
    copies = max(gpus // (now("tp") * now("pp") * now("cp")), 1)
    if "mbs" not in changes and gbs % (now("mbs") * copies):
        fitting = [mbs for mbs in _sizes(card, "mbs") if mbs <= now("mbs") and gbs % (mbs * copies) == 0]
        done |= {"mbs": fitting[-1]} if fitting else {}
    if "vpp" not in changes and now("vpp") > 1 and gbs // (now("mbs") * copies) % now("pp"):
        done["vpp"] = 1
    if done.get("ep_overlap") is True:
        if now("pp") > 1 and now("vpp") == 1:
            done["vpp"] = 2
        done |= {"shared_expert_overlap": False} if values.get("shared_expert_overlap") else {}
        done |= _narrow_recompute(now("recompute"), card)
    elif values.get("ep_overlap") and "ep_overlap" not in changes:
        excluded = _is_broad(done.get("recompute")) or (now("pp") > 1 and now("vpp") == 1)
        done |= {"ep_overlap": False} if excluded else {}
    if "cuda_graph" in values and "cuda_graph" not in changes and _is_broad(done.get("recompute")):
        done |= _smaller_graph(now("recompute"), values["cuda_graph"])
    return {key: value for key, value in done.items() if key in changes or value != values.get(key)}


def _is_broad(level: Any) -> bool:
    """Whether a level of recomputation covers whole MoE layers, which expert-parallel overlap excludes."""
    return level == "full" or "moe" in str(level).split("+")


def _narrow_recompute(level: Any, card: Facts) -> Changes:
    """The widest level that goes with expert-parallel overlap, where ``level`` does not."""
    narrow = [choice for choice in _sizes(card, "recompute") if not _is_broad(choice)]
    return {"recompute": narrow[-1]} if _is_broad(level) and narrow else {}


def _smaller_graph(level: Any, graph: Any) -> Changes:
    """The CUDA graph that goes with recomputing whole layers (none) or whole MoE layers (attention alone)."""
    if level == "full":
        return {"cuda_graph": "none"}
    return {"cuda_graph": "te:attn"} if "moe_router" in str(graph) else {}


def _sizes(card: Facts, key: str) -> list[Any]:
    return list(card["parameters"].get(key, {}).get("choices", []))


FOLLOWING = frozenset(
    {"sequence_parallel", "account_embedding", "account_loss", "delay_wgrad", "env.CUDA_DEVICE_MAX_CONNECTIONS"}
)
"""Parameters that follow from others: moved alone they mostly break a rule of the stack."""


def neighbours(values: Values, card: Facts, inert: Collection[str]) -> Iterator[dict[str, Any]]:
    """Every parameter but `FOLLOWING` ones moved to a value next to its own, as levers of no expected saving."""
    for key, row in card["parameters"].items():
        if key in inert or key in FOLLOWING:
            continue
        ordered = all(type(choice) is int for choice in row["choices"])
        if ordered and values.get(key) in row["choices"]:
            steps = ["up", "down"]
        else:
            steps = [f"={choice}" for choice in row["choices"] if choice != values.get(key)]
        for step in steps:
            yield {"moves": [[key, step]], "saves": 0.0, "why": "nothing better is known: try its neighbour"}


def pairs(found: Sequence[Facts]) -> Iterator[dict[str, Any]]:
    """Two single levers of ``found`` at once, where they move different parameters, in the order of ``found``."""
    single = [lever for lever in found if len(lever["moves"]) == 1]
    for first, second in itertools.combinations(single, 2):
        if first["moves"][0][0] != second["moves"][0][0]:
            moves = [*first["moves"], *second["moves"]]
            yield {"moves": moves, "saves": first["saves"] + second["saves"], "why": f"{first['why']}; {second['why']}"}
