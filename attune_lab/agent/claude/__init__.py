"""The claude policy: a language model tunes the user's own file by tools, with rules, budget and gate around it."""

from attune_lab.agent.claude.tuner import ClaudeTuner

__all__ = ["ClaudeTuner"]
