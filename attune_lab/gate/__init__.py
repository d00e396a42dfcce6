"""The gate: is what a tuner wants to ship still the same training run?"""

from attune_lab.gate.campaign import CampaignGate, OpenGate
from attune_lab.gate.convergence import Change
from attune_lab.gate.curve import Curve
from attune_lab.gate.run import run_gate
from attune_lab.gate.verdict import Check, Verdict, judge

__all__ = ["CampaignGate", "Change", "Check", "Curve", "OpenGate", "Verdict", "judge", "run_gate"]
