"""ATTUNE: diagnose a run, change one lever that a catalog of lessons names, keep or revert.

**Source:** the abstract of ATTUNE (arXiv 2610.17528).

Faithful: one agent, unattended, within a budget; it diagnoses each run, changes one lever at a time, is guided by a
catalog of lessons, retries an out-of-memory layout with recomputation, and every search rule can be switched off. With
``policy=claude`` a language model reads and edits the recipe's own file and decides; rules, budget and gate do not
depend on it.
Reconstructed: the catalog, written from public reports with their sources and without tuned runs of the models that
studies tune; the offline policy, which ranks lessons and all layouts by the cost model, corrected by the runs so far,
where the paper asks a language model; the model's tools; what counts as one lever; the rules that check memory first,
believe a gain only outside the noise band, measure winners again, and stop.
"""

from attune_lab.agent.opening import attune_tuner
from attune_lab.agent.tuner import AttuneTuner

__all__ = ["AttuneTuner", "attune_tuner"]
