"""What the trainer trains and how: the settings of one run, named as in the registry of recipe settings."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from attune_lab.contracts import UserError


class TrainerConfig(BaseModel):
    """One run. Immutable; JSON in a run folder as ``config.json``. Defaults are the suite's small MoE."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    # model
    num_layers: int = Field(default=4, ge=1)
    hidden: int = Field(default=64, ge=8)
    heads: int = Field(default=4, ge=1)
    kv_groups: int = Field(default=2, ge=1)
    ffn: int = Field(default=128, ge=8)
    vocab_size: int = Field(default=512, ge=8)
    num_experts: int = Field(default=0, ge=0, description="0: dense")
    topk: int = Field(default=2, ge=1)
    moe_ffn: int = Field(default=64, ge=4)
    shared_expert_size: int = Field(default=0, ge=0)
    score_function: Literal["softmax", "sigmoid"] = "softmax"
    lb_type: Literal["none", "aux_loss", "seq_aux_loss", "global_aux_loss"] = "seq_aux_loss"
    aux_loss_coeff: float = Field(default=0.01, ge=0)
    z_loss_coeff: float = Field(default=0.0, ge=0)
    expert_bias: bool = False
    bias_update_rate: float = Field(default=1e-3, ge=0)
    capacity_factor: float | None = None
    router_padding_mask: bool = Field(default=False, description="padding takes no part in load balancing")
    router_dtype: Literal["fp32", "bf16"] = "fp32"
    qk_layernorm: bool = False
    add_bias_linear: bool = False
    softmax_type: Literal["vanilla", "learnable"] = Field(default="vanilla", description="learnable: attention sinks")
    rotary_base: float = Field(default=10_000.0, gt=0)
    norm_epsilon: float = Field(default=1e-5, gt=0)
    untie_embeddings: bool = True
    mtp_num_layers: int = Field(default=0, ge=0, le=1)
    mtp_loss_scaling_factor: float = Field(default=0.1, ge=0)
    hidden_dropout: float = Field(default=0.0, ge=0, lt=1)
    init_method_std: float = Field(default=0.02, gt=0)

    # layout
    tp: int = Field(default=1, ge=1)
    pp: int = Field(default=1, ge=1)
    vpp: int = Field(default=1, ge=1, description="model chunks per pipeline rank")
    cp: int = Field(default=1, ge=1)
    ep: int = Field(default=1, ge=1)
    etp: int = Field(default=1, ge=1)
    dp: int = Field(default=1, ge=1)
    sequence_parallel: bool = False
    schedule: Literal["1f1b", "gpipe"] = Field(default="1f1b", description="interleaved where vpp is above 1")
    cp_comm_type: Literal["all_gather", "a2a"] = "all_gather"
    dispatcher: Literal["alltoall", "allgather"] = "alltoall"
    grouped_gemm: bool = False

    # batch and data
    mbs: int = Field(default=2, ge=1)
    gbs: int = Field(default=16, ge=1)
    seq_len: int = Field(default=64, ge=4)
    train_iters: int = Field(default=20, ge=1)
    seed: int = 1
    data_seed: int = 1
    ragged: bool = Field(default=False, description="sequences end early: lengths uniform in 1/4..1 of the context")
    packed: bool = Field(default=False, description="several documents per sequence, apart in attention and positions")
    per_token_loss: bool = True
    samples_per_epoch: int = Field(default=4096, ge=1)

    # numerics
    bf16: bool = True
    fp8: bool = Field(default=False, description="GEMM inputs rounded to E4M3 with the tensor's own scale")
    grad_reduce_in_fp32: bool = True
    main_params_dtype: Literal["fp32", "bf16"] = "fp32"
    exp_avg_dtype: Literal["fp32", "bf16"] = "fp32"
    attention_backend: Literal["fused", "unfused", "chunked"] = "fused"
    cross_entropy_fusion: bool = False
    recompute_granularity: Literal["none", "selective", "full"] = "none"

    # optimizer
    optimizer: Literal["adam", "sgd"] = "adam"
    lr: float = Field(default=2e-3, gt=0)
    min_lr: float = Field(default=2e-4, ge=0)
    lr_decay_style: Literal["constant", "linear", "cosine"] = "cosine"
    lr_decay_iters: int = 100
    lr_warmup_iters: int = 5
    adam_beta1: float = Field(default=0.9, ge=0, lt=1)
    adam_beta2: float = Field(default=0.95, ge=0, lt=1)
    adam_eps: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.1, ge=0)
    decoupled_lr: float | None = Field(default=None, description="learning rate of embedding and head", gt=0)
    clip_grad: float = Field(default=1.0, ge=0)
    use_distributed_optimizer: bool = False
    overlap_grad_reduce: bool = False
    overlap_param_gather: bool = False
    num_buckets: int = Field(default=2, ge=1)

    @property
    def world_size(self) -> int:
        """Ranks the layout needs."""
        return self.tp * self.pp * self.cp * self.dp

    @property
    def edp(self) -> int:
        """Data-parallel size of the experts."""
        return self.tp * self.cp * self.dp // (self.ep * self.etp)

    @property
    def microbatches(self) -> int:
        """Micro-batches per step and data-parallel rank."""
        return self.gbs // (self.mbs * self.dp)

    @model_validator(mode="after")
    def _legal(self) -> TrainerConfig:
        problems = [text for broken, text in self._rules() if broken]
        if problems:
            raise ValueError(problems[0])
        return self

    def _rules(self) -> list[tuple[bool, str]]:
        """(broken, what to do) for everything a layout must satisfy."""
        moe, stages = self.num_experts > 0, self.pp * self.vpp
        return [
            (self.hidden % self.heads > 0, "hidden must be a multiple of heads"),
            (self.hidden // self.heads % 2 > 0, "the head dimension hidden / heads must be even for rotary positions"),
            (self.heads % self.kv_groups > 0, "heads must be a multiple of kv_groups"),
            (self.kv_groups % self.tp > 0 and self.kv_groups > 1, "kv_groups must be 1 or a multiple of tp"),
            (self.heads % self.tp > 0, "heads must be a multiple of tp"),
            (any(n % self.tp for n in (self.ffn, self.vocab_size)), "ffn and vocab_size must be multiples of tp"),
            (self.shared_expert_size % self.tp > 0, "shared_expert_size must be a multiple of tp"),
            (self.num_layers % stages > 0, "num_layers must be a multiple of pp * vpp"),
            (self.vpp > 1 and self.pp == 1, "vpp above 1 needs pp above 1"),
            (self.gbs % (self.mbs * self.dp) > 0, "gbs must be a multiple of mbs * dp"),
            (
                self.vpp > 1 and self.gbs // (self.mbs * self.dp) % self.pp > 0,
                "vpp above 1 needs a number of micro-batches that is a multiple of pp",
            ),
            (self.seq_len % (2 * self.cp) > 0, "seq_len must be a multiple of 2 * cp"),
            (self.sequence_parallel and self.tp == 1, "sequence_parallel needs tp above 1"),
            (self.seq_len // self.cp % self.tp > 0, "seq_len / cp must be a multiple of tp"),
            (self.cp_comm_type == "a2a" and self.kv_groups % (self.tp * self.cp) > 0, "a2a needs kv_groups / tp / cp"),
            (moe and self.tp > 1 and not self.sequence_parallel, "a MoE with tp above 1 needs sequence_parallel"),
            (not moe and self.ep * self.etp > 1, "ep and etp need num_experts"),
            (moe and self.num_experts % self.ep > 0, "num_experts must be a multiple of ep"),
            (moe and self.topk > self.num_experts, "topk exceeds num_experts"),
            (moe and self.moe_ffn % self.etp > 0, "moe_ffn must be a multiple of etp"),
            (self.tp * self.cp * self.dp % (self.ep * self.etp) > 0, "ep * etp must divide tp * cp * dp"),
            (moe and self.add_bias_linear and self.etp > 1, "add_bias_linear in experts needs etp: 1"),
            (self.softmax_type == "learnable" and self.attention_backend != "unfused",
             "softmax_type: learnable needs attention_backend: unfused"),
            (self.capacity_factor is not None and self.capacity_factor <= 0, "capacity_factor must be positive"),
            (self.overlap_param_gather and not self.use_distributed_optimizer,
             "overlap_param_gather needs use_distributed_optimizer"),
        ]  # fmt: skip


def parse_config(values: dict[str, Any]) -> TrainerConfig:
    """The configuration in a mapping of settings.

    Raises:
        UserError: a setting is unknown, of the wrong type, or the layout is impossible.
    """
    from pydantic import ValidationError

    try:
        return TrainerConfig.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        message = first["msg"].removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            near = get_close_matches(where, TrainerConfig.model_fields, n=1)
            message = f"no such setting; did you mean {near[0]}" if near else "no such setting"
        raise UserError(f"trainer settings{': ' + where if where else ''}: {message}.") from error
