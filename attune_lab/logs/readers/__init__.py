"""One reader per stack."""

from attune_lab.logs.readers.base import Facts, Reader
from attune_lab.logs.readers.deepspeed import DeepSpeed
from attune_lab.logs.readers.hf_trainer import HfTrainer
from attune_lab.logs.readers.megatron import Megatron
from attune_lab.logs.readers.nanotron import Nanotron
from attune_lab.logs.readers.nemo import Nemo
from attune_lab.logs.readers.torchtitan import Torchtitan

__all__ = ["Facts", "Reader", "all_readers"]


def all_readers() -> tuple[Reader, ...]:
    """A new reader of each stack; of two that read as many figures in a log, the first names its stack."""
    return Megatron(), Nemo(), Torchtitan(), Nanotron(), DeepSpeed(), HfTrainer()
