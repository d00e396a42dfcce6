"""The cheap signals of two runs, side by side: what a loss curve hides.

In order of strength: settings in force, `ledgers` that must be equal, `invariants` that hold in any one run, figures of
`probes`, `gradients` on equal weights and batches, and the `dynamics` from step to step. Limits come from `bands`.
"""

from attune_lab.gate.evidence.compare import check, same_start
from attune_lab.gate.evidence.invariants import alone as check_alone

__all__ = ["check", "check_alone", "same_start"]
