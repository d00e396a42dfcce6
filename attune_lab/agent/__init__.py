"""ATTUNE with an offline policy: diagnose a run, change one lever that a catalog of lessons names, keep or revert.

**Source:** the abstract of ATTUNE (arXiv 2610.17528).

Faithful: one agent, unattended, within a budget; it diagnoses each run, changes one lever at a time, is guided by a
catalog of lessons, retries an out-of-memory layout with recomputation, and every search rule can be switched off.
Reconstructed: the catalog, written from public reports with their sources and without tuned runs of the models that
studies tune; the policy, which ranks lessons by rules and by the cost model where the paper asks a language model; the
rules that check memory first, believe a gain only outside the noise band, measure winners again, and stop.
"""

from attune_lab.agent.opening import attune_tuner
from attune_lab.agent.tuner import AttuneTuner

__all__ = ["AttuneTuner", "attune_tuner"]
