"""Other cost models of training steps, each as a function that prices one layout of GPT-3 175B on 512 A100.

Peers are optional: one that is not installed, or has no checkout, comes as the reason why.
"""

from __future__ import annotations

import importlib
import itertools
import json
import logging
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GPUS = 512
BATCH = 512


@dataclass(frozen=True)
class Layout:
    """One dense layout; ``recompute`` is ``none``, ``attn_only`` or ``full``."""

    tp: int
    pp: int
    vpp: int
    mbs: int
    recompute: str

    @property
    def dp(self) -> int:
        """Data-parallel size."""
        return GPUS // (self.tp * self.pp)


Price = Callable[[Layout], object]
"""Prices time and memory of one layout; raises an exception for one that the peer refuses."""


def layouts() -> Iterator[Layout]:
    """Layouts of 96 layers and 96 heads on 512 GPUs that every peer can be asked about."""
    for recompute, mbs, pp, tp, vpp in itertools.product(
        ("attn_only", "full", "none"), (1, 2, 4, 8), (8, 4, 2, 16, 1), (8, 4, 2, 1), (1, 2, 3, 6)
    ):
        layout = Layout(tp, pp, vpp, mbs, recompute)
        count, rest = divmod(BATCH, mbs * max(layout.dp, 1))
        legal = GPUS % (tp * pp) == 0 and rest == 0 and count > 0 and 96 % (pp * vpp) == 0
        if legal and (vpp == 1 or (pp > 1 and count % pp == 0)):
            yield layout


def llm_analysis() -> Price | str:
    """llm-analysis as installed from PyPI. It has no interleaving: ``vpp`` is not read."""
    try:
        analysis = importlib.import_module("llm_analysis.analysis")
        config = importlib.import_module("llm_analysis.config")
    except ImportError as error:
        return f"not installed ({error}): pip install llm-analysis"
    logging.getLogger("llm_analysis").setLevel(logging.ERROR)
    analysis.logger.setLevel(logging.ERROR)
    model = config.get_model_config_by_name("facebook_opt-175b")
    gpu, dtype = config.get_gpu_config_by_name("a100-sxm-80gb"), config.get_dtype_config_by_name("w16a16e16")
    recomputed = {"none": "NONE", "attn_only": "SELECTIVE", "full": "FULL"}

    def price(layout: Layout) -> object:
        sizes = config.ParallelismConfig(
            tp_size=layout.tp, pp_size=layout.pp, dp_size=layout.dp, sp_size=layout.tp, ep_size=1
        )
        return analysis.LLMAnalysis(model, gpu, dtype, sizes, flops_efficiency=0.5).training(
            batch_size_per_gpu=layout.mbs,
            gradient_accumulation_steps=BATCH // (layout.mbs * layout.dp),
            seq_len=2048,
            activation_recomputation=analysis.ActivationRecomputation[recomputed[layout.recompute]],
        )

    return price


def calculon(folder: Path | None) -> Price | str:
    """Calculon from a checkout of calculon-ai/calculon, with its own GPT-3 175B, A100 and execution files."""
    if folder is None:
        return "no checkout: pass --calculon DIR"
    sys.path.insert(0, str(folder))
    try:
        package = importlib.import_module("calculon.llm")
        llm, system = package.Llm, package.System(_json(folder / "systems/a100_80g.json"))
        application = llm.Application(_json(folder / "models/gpt3-175B.json"))
        usual = _json(folder / "validation/seqsel/tab5/gpt3-175B_seqsel.json")
    except (ImportError, AttributeError, OSError) as error:
        return f"{folder} is no checkout that can be used ({error})"
    log = logging.getLogger("calculon")

    def price(layout: Layout) -> object:
        sequence_parallel = layout.tp > 1 and layout.recompute != "full"
        execution = {
            **usual, "num_procs": GPUS, "batch_size": BATCH, "tensor_par": layout.tp, "pipeline_par": layout.pp,
            "data_par": layout.dp, "microbatch_size": layout.mbs, "pipeline_interleaving": layout.vpp,
            "activation_recompute": layout.recompute, "optimizer_sharding": layout.dp > 1,
            "data_par_overlap": layout.dp > 1, "tensor_par_comm_type": "rs_ag" if sequence_parallel else "ar",
            "seq_par_ag_redo": sequence_parallel,
        }  # fmt: skip
        model = llm(application, log)
        model.compile(system, llm.Execution.from_json(execution))
        model.run(system)
        return model.get_stats_json(False)

    return price


def simumax(folder: Path | None) -> Price | str:
    """SimuMax from a checkout of MooreThreads/SimuMax: Llama-3 8B at TP 1, PP 2 on its A100 file.

    Its strategies are files, so of a layout only the number of micro-batches is taken.
    """
    if folder is None:
        return "no checkout: pass --simumax DIR"
    sys.path.insert(0, str(folder))
    try:
        config = importlib.import_module("simumax.core.config")
        tool = importlib.import_module("simumax.core.perf_llm").PerfLLM
        find = importlib.import_module("simumax.utils")
        strategy_file = find.get_simu_strategy_config("tp1_pp2_dp4_mbs1")
        model_file, system_file = find.get_simu_model_config("llama3-8b"), find.get_simu_system_config("a100_pcie")
    except (ImportError, AttributeError, OSError) as error:
        return f"{folder} is no checkout that can be used ({error})"

    def price(layout: Layout) -> object:
        strategy = config.StrategyConfig.init_from_config_file(strategy_file)
        strategy.micro_batch_num = BATCH // (layout.mbs * layout.dp)
        model = tool()
        model.configure(
            strategy_config=strategy,
            model_config=config.ModelConfig.init_from_config_file(model_file),
            system_config=config.SystemConfig.init_from_config_file(system_file),
        )
        model.run_estimate()
        return model.analysis_mem(), model.analysis_cost()

    return price


def _json(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return content
