"""Pipeline layout strings: which parts of the model sit on which virtual stage.

``E`` embedding, ``t`` decoder layer, ``m`` multi-token-prediction layer, ``L`` loss, ``|`` stage boundary,
``x*n`` repetition of one symbol and ``(..)*n`` of a group; ``|`` may stand inside a group.

**Source:** NVIDIA/Megatron-LM@d98e8a6 megatron/core/transformer/pipeline_parallel_layer_layout.py
(``PipelineParallelLayerLayout.parse_str_to_list``).
"""

from __future__ import annotations

import re
from functools import lru_cache

_SYMBOLS = frozenset("EtmL")
_GROUP = re.compile(r"\(([EtmL|]*)\)\*(\d{1,4})")
_REPEAT = re.compile(r"([EtmL|])\*(\d{1,4})")
_MAX_LENGTH = 10_000


@lru_cache(maxsize=4096)
def virtual_stages(layout: str) -> tuple[str, ...]:
    """The symbols of every virtual stage in pipeline order: ``"Et*2|(t|)*2L"`` -> ``("Ett", "t", "t", "L")``.

    Commas and spaces, which the stack ignores, are ignored here too.

    Raises:
        ValueError: a symbol outside the grammar, or an expansion beyond 10,000 symbols.
    """
    text = _expand(_REPEAT, re.sub(r"[,\s]", "", layout))
    while _GROUP.search(text):
        text = _expand(_REPEAT, _expand(_GROUP, text))
    stages = tuple(text.split("|"))
    unknown = {symbol for stage in stages for symbol in stage} - _SYMBOLS
    if unknown:
        raise ValueError(f"pipeline layout {layout!r}: cannot read {''.join(sorted(unknown))!r}; use E, t, m, L, |")
    return stages


def _expand(pattern: re.Pattern[str], text: str) -> str:
    """``text`` with every repetition written out, refusing to grow without bound."""
    length = len(text) + sum(len(m[1]) * int(m[2]) for m in pattern.finditer(text))
    if length > _MAX_LENGTH:
        raise ValueError(f"a pipeline layout of more than {_MAX_LENGTH} symbols")
    return pattern.sub(lambda m: m[1] * int(m[2]), text)


def symbols(layout: str) -> str:
    """All symbols in pipeline order without the boundaries: ``"Ettt…L"``."""
    return "".join(virtual_stages(layout))


def layout_count(layout: str, symbol: str) -> int:
    """How often ``symbol`` occurs, repetitions counted."""
    return symbols(layout).count(symbol)


def stages(layout: str) -> int:
    """Number of virtual stages over all pipeline ranks."""
    return len(virtual_stages(layout))


def stages_with(layout: str, symbol: str) -> tuple[int, ...]:
    """Indices of the virtual stages that hold ``symbol``."""
    return tuple(i for i, stage in enumerate(virtual_stages(layout)) if symbol in stage)


def layers_per_rank(layout: str, pp: int) -> tuple[int, ...]:
    """Decoder layers on each of ``pp`` ranks; virtual stages are dealt to the ranks in turn.

    Raises:
        ValueError: the number of virtual stages is no multiple of ``pp``.
    """
    counts = [stage.count("t") for stage in virtual_stages(layout)]
    if len(counts) % pp:
        raise ValueError(f"pipeline layout {layout!r} has {len(counts)} stages, no multiple of {pp} pipeline ranks")
    return tuple(sum(counts[rank::pp]) for rank in range(pp))


def splits_evenly(layers: int, parts: int) -> bool:
    """``layers`` can be dealt to ``parts`` stages in equal, non-empty shares; no layers need no stage."""
    return layers == 0 if parts == 0 else parts > 0 and layers > 0 and layers % parts == 0
