"""attune-lab: tune LLM-training recipes under a GPU-hour budget, and ship only what still trains the same model."""

__version__ = "0.1.0"
