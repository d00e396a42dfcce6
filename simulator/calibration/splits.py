"""How training stacks deal layers out to pipeline stages when a row does not print it."""

from __future__ import annotations

import re

from simulator.calibration.cells import InvalidCell
from simulator.models import ModelShape

_MAX_LENGTH = 10_000  # of a written-out pipeline layout; longer ones are typing errors
_TOKEN = re.compile(r"([A-Za-z|]|\([^()]*\))(?:\*(\d{1,4}))?")


def split_layers(shape: ModelShape, pp: int, vpp: int) -> tuple[int, ...]:
    """Layers of each of ``pp`` stages as Megatron's recipes set them, the chunks of interleaving added up.

    Evenly over the pp x vpp chunks where that is possible; else with embedding and head counted as a layer each, so
    that the first and the last chunk hold one less; else whole chunks with what is left over on the last one; else
    the remainder goes to the first stages.
    **Source:** Megatron-LM ``account_for_embedding_in_pipeline_split``; Megatron-Bridge deepseek recipes,
    pipeline layouts ``Et*4|(t*4|)*14tmL``.
    """
    chunks, layers = pp * vpp, shape.layers
    each, rest = divmod(layers, chunks)
    if rest == 0 or chunks == 1:
        sizes = [each] * chunks
    elif (layers + 2) % chunks == 0:
        sizes = [each + 1] * chunks
        sizes[0] -= 1
        sizes[-1] -= 1
    elif layers > (each + 1) * (chunks - 1):
        sizes = [each + 1] * (chunks - 1) + [layers - (each + 1) * (chunks - 1)]
    else:
        return tuple(layers // pp + (stage < layers % pp) for stage in range(pp))
    return tuple(sum(sizes[stage::pp]) for stage in range(pp))


def split_by_cost(shape: ModelShape, pp: int) -> tuple[int, ...]:
    """Layers of each stage in nanotron, which weighs blocks by their matrices; stages may be left without any.

    The head weighs as much as vocabulary over layer matrices says, so early stages get more layers.
    """
    stages = _placed_by_cost(shape, pp)[1 : shape.layers + 1]
    return tuple(stages.count(stage) for stage in range(pp))


def leaves_idle_stages(shape: ModelShape, pp: int) -> bool:
    """Whether nanotron's placement ends before the last stage: such jobs crashed in 141 of 143 published runs."""
    return _placed_by_cost(shape, pp)[-1] < pp - 1


def _placed_by_cost(shape: ModelShape, pp: int) -> list[int]:
    """Stage of every block: embedding, layers, final norm, head, cast and loss.

    A block goes to the current stage, and the next one to the next stage once the running cost has reached this
    stage's share (the published code asks for more; the memory of its sweep shows that equal is enough).
    **Source:** huggingface/nanotron@01de8d9 src/nanotron/models/base.py ``build_model`` and models/llama.py
    ``get_block_compute_costs``.
    """
    layer = 4 * shape.heads * shape.head_dim * shape.hidden + 3 * shape.ffn * shape.hidden
    costs = [0, *[layer] * shape.layers, 0, shape.vocab * shape.hidden, 0, 0]
    total, passed, stage, stages = sum(costs), 0, 0, []
    for cost in costs:
        passed += cost
        stages.append(stage)
        if passed * pp >= total * (stage + 1) and stage < pp - 1:
            stage += 1
    return stages


def split_by_layout(text: str, pp: int) -> tuple[tuple[int, ...], int]:
    """Layers of each stage, and virtual stages a rank, of a Megatron layout such as ``Et*4|(t*4|)*14tmL``.

    ``|`` ends a chunk, ``t`` is a decoder layer, ``x*n`` and ``(...)*n`` repeat; E, m and L are embedding,
    multi-token prediction and loss. Chunk i belongs to stage i modulo ``pp``.

    Raises:
        InvalidCell: another grammar, or chunks that are no multiple of ``pp``.
    """
    chunks = _expand(text).split("|")
    if set("".join(chunks)) - set("EtmL") or len(chunks) % pp:
        raise InvalidCell(
            f"knob 'pp_layout' holds '{text[:40]}'; chunks of E, t, m and L are needed, a multiple of {pp} of them"
        )
    counts = [chunk.count("t") for chunk in chunks]
    return tuple(sum(counts[stage::pp]) for stage in range(pp)), len(chunks) // pp


def _expand(text: str) -> str:
    """``text`` with its repetitions written out, or ``?`` where it is not understood or absurdly long."""
    written, position = "", 0
    while position < len(text):
        token = _TOKEN.match(text, position)
        if token is None:
            return "?"
        body, times = token.group(1), int(token.group(2) or 1)
        piece = _expand(body[1:-1]) if body.startswith("(") else body
        if len(written) + len(piece) * times > _MAX_LENGTH:
            return "?"
        written += piece * times
        position = token.end()
    return written
