"""The tuning agent: diagnosis, lessons, search rules, policies and the tuner that joins them."""

from attune_lab.agent.tuner import AttuneTuner

__all__ = ["AttuneTuner"]
