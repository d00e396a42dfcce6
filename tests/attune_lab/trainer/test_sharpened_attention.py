"""The probe of sharpened attention shows faults that uniform attention hides, and leaves the run as it was."""

import pytest
import torch

from attune_lab.gate.evidence.gradients import group_errors
from attune_lab.trainer import attention
from attune_lab.trainer.config import TrainerConfig
from attune_lab.trainer.injection import patched
from attune_lab.trainer.loop import train
from attune_lab.trainer.mesh import Mesh
from attune_lab.trainer.probes import SHARP, Probes, sharpened
from attune_lab.trainer.recording import Recorder
from attune_lab.trainer.state import make_state
from attune_lab.trainer.step import compute_gradients

CONFIG = TrainerConfig(gbs=8, mbs=4, num_layers=2)


def weights(state):
    return {m.spec.name: m.parameter.detach().clone() for b in state.optimizer.buckets for m in b.members}


@pytest.mark.parametrize("qk_layernorm", [False, True])
def test_scores_spread_as_wide_as_wanted_and_weights_are_put_back(qk_layernorm, monkeypatch):
    state = make_state(config := CONFIG.model_copy(update={"qk_layernorm": qk_layernorm}), Mesh.build(config))
    before, seen = weights(state), []

    def watch(query, key, value, sink, context, original=attention.core):
        scores = torch.einsum("sbhd,tbgd->bhgst", query.float(), key.float())
        seen.append(float(scores.detach().std()) / query.shape[-1] ** 0.5)
        return original(query, key, value, sink, context)

    monkeypatch.setattr(attention, "core", watch)
    with sharpened(state):
        compute_gradients(state)
    assert seen == pytest.approx([SHARP] * len(seen), rel=0.4)  # keys repeat with their words
    assert all(torch.equal(before[name], now) for name, now in weights(state).items())


def test_the_run_goes_on_as_if_it_had_not_been_probed():
    config = CONFIG.model_copy(update={"train_iters": 2})
    assert train(config, probes=("attention",)).loss == train(config).loss


def step_of(probe, faults=None, **changes):
    """The record of a probe, or of the first step for ``None``."""
    config = CONFIG.model_copy(update=changes)
    with patched(faults or {}):
        state = make_state(config, Mesh.build(config))
        recorder = Recorder(state)
        if probe is None:
            return recorder.gradients(compute_gradients(state))
        probes = Probes(state, recorder, (probe,))
        probes.before()
        return probes.found[probe].step


FAULTS = {
    "base": {"context.rotary": lambda original, x, c: original(x, c.model_copy(update={"rotary_base": 1e5}))},
    "scale": {"attention.softmax_scale": lambda original, head: 1.2 * original(head)},
}


@pytest.mark.parametrize("fault", FAULTS)
def test_it_shows_faults_that_the_first_step_hides(fault):
    """Error of the attention's gradient, against that of another kernel."""

    def errors(probe):
        sound = step_of(probe)
        faulty, kernel = step_of(probe, FAULTS[fault]), step_of(probe, attention_backend="unfused")
        return group_errors(sound, faulty)["attention"], group_errors(sound, kernel)["attention"]

    hidden, rounding = errors(None)
    assert hidden < 3 * rounding
    shown, rounding = errors("attention")
    assert shown > 5 * rounding
