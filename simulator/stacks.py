"""What training frameworks do where a job does not say.

A stack is a framework as far as the physics can tell frameworks apart: its defaults, and its own value of those
constants in which it differs from Megatron-Core (`simulator.physics.physics_of`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True)
class Stack:
    """One kind of framework.

    Attributes:
        name: key of `simulator.physics.physics_of`.
        interconnect: network of the cluster its published measurements come from.
        defaults: columns of `simulator.job.make_jobs` where they are not Megatron-Core's.
        pipelined, sharded: further ones, with a pipeline and with a sharded optimizer.
    """

    name: str
    interconnect: str = "ib"
    defaults: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    pipelined: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    sharded: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    def columns(self, pp: int, zero_stage: int) -> dict[str, Any]:
        """What a run with these sizes has where it does not say."""
        pipelined = self.pipelined if pp > 1 else {}
        return {**self.defaults, **pipelined, **(self.sharded if zero_stage > 0 else {})}


def _stack(name: str, **defaults: Any) -> Stack:
    return Stack(name, defaults=MappingProxyType(defaults))


MEGATRON = _stack("megatron")
_EAGER = {"sequence_parallel": False}
_STACKS = (
    MEGATRON,
    # Megatron-LM before flash attention (2021-2022): the score matrix goes through memory.
    _stack("megatron-2022", fused_attention=False, zero_stage=0),
    _stack("megatron-deepspeed", fused_attention=False, zero_stage=0, **_EAGER),
    _stack("deepspeed", zero_stage=3, **_EAGER),
    # The playbook's sweep ran on AWS P5. Its layouts with a pipeline were measured again with a later state of the
    # code (huggingface/nanotron@0e0a27e scripts/scaling_benchmarks.py), and only they pay for every collective. With
    # ZeRO there is no DistributedDataParallel to overlap anything (same commit, src/nanotron/trainer.py `make_ddp`).
    Stack(
        "nanotron",
        interconnect="efa",
        defaults=MappingProxyType({"zero_stage": 0, "p2p_handshake": True, "bucket_bytes": 800_000_000}),
        pipelined=MappingProxyType({"checked_collectives": True}),
        sharded=MappingProxyType({"overlap_grad_reduce": False, "overlap_param_gather": False}),
    ),
    _stack("llm-foundry", zero_stage=3),
    _stack("torchtitan", zero_stage=3),
    _stack("maxtext", zero_stage=3),
    _stack("internevo", **_EAGER),
)
_BY_NAME = MappingProxyType({stack.name: stack for stack in _STACKS})
_FRAMEWORKS = MappingProxyType(
    {
        "Megatron-DeepSpeed": "megatron-deepspeed",
        "DeepSpeed": "deepspeed",
        "DeepSpeed-ZeRO2": "deepspeed",
        "DeepSpeed-ZeRO3": "deepspeed",
        "ColossalAI": "deepspeed",
        "nanotron": "nanotron",
        "llm-foundry": "llm-foundry",
        "torchtitan": "torchtitan",
        "MaxText": "maxtext",
        "PaxML": "maxtext",
        "InternEvo": "internevo",
    }
)


def stack_of(framework: str, version: str = "") -> Stack:
    """The stack of a framework as measurement tables name it; Megatron-Core's for one that is not known."""
    if framework == "Megatron-LM" and any(year in version for year in ("2021", "2022")):
        return _BY_NAME["megatron-2022"]
    return _BY_NAME[_FRAMEWORKS.get(framework, MEGATRON.name)]
