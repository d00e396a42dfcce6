"""OptiCo (re-implementation from the abstract): a team of agents around a global message pool.

**Source:** the abstract of OptiCo (Chen, Tang, Zhang, Yang, Wang, Li, Liu; ACL 2026). Neither the paper's body nor its
code (TangZhe96/OptiCo-public) was available.

Faithful to the abstract: several reasoning agents; a shared Global Message Pool for memory and coordination; inception
prompts; reasoning before decisions; iterative refinement; bottleneck detection, failure analysis and care for resource
use; a protocol of 20 iterations (``protocol=iterations``).

Reconstructed: the pool from MetaGPT (arXiv 2308.00352: structured messages, subscriptions, a role acts once all it
depends on is there), the inception prompts from CAMEL (arXiv 2303.17760: identity, no change of roles, task, form of
the output, termination). Roles, their schemas, the order of turns, windows and the limit of two revisions are ours,
one role for each verb of the abstract. The search space is the one of every tuner here; fields outside it are dropped
and counted. The cost model is not consulted unless ``use_analytic_estimate=true``: the abstract speaks against prior
profiling, and does not say whether formulas are used. By default the budget, not 20 iterations, ends the search
(``protocol=budget``). OptiCo has no gate; the campaign's gate judges what it ships, as for all.

Order of turns: strategist, resource checker (at most two revisions, then the last version goes through, or the
iteration is void where it cannot start), executor (code), then the bottleneck analyst, or the failure analyst after a
failure. Ablations (``ablation``): ``no-pool`` (a role sees the last message alone), ``no-failure-analyst``,
``no-inception``, ``merged`` (one agent; give it the same ``tokens``).
"""

from baselines.optico.tuner import Optico

__all__ = ["Optico"]
