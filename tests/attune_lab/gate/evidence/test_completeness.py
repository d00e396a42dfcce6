"""A signal that the candidate leaves out is asked for, wherever it is."""

import pytest

from attune_lab.gate.evidence import check
from attune_lab.gate.evidence.completeness import HASHES, MAPS
from attune_lab.signals import Probe
from tests.attune_lab.gate.evidence.signals_for_tests import gradients, record, run


def probes(**changes):
    return {"ragged": Probe(cost_steps=1, step=record(1, gradients(5), **changes), figures={"a": 0.0, "b": 0.0})}


BASE = run(probes=probes())


def question(candidate):
    return next((c.reason for c in check(BASE, candidate) if c.name == "ledger.recorded"), None)


def without(field):
    return {field: "" if field in HASHES else None if field == "clip_factor" else {}}


def test_nothing_is_missing_in_an_equal_run():
    assert question(run(1, probes=probes())) is None


@pytest.mark.parametrize("field", [*HASHES, *MAPS, "clip_factor"])
def test_every_field_is_missed_in_any_step(field):
    bare = run(1, probes=probes())
    later = bare.model_copy(update={"steps": (*bare.steps[:2], bare.steps[2].model_copy(update=without(field)))})
    assert field.replace("_", " ") in question(later)
    assert "at step 3" in question(later)
    assert "probe ragged" in question(run(1, probes=probes(**without(field))))


def test_one_parameter_a_figure_a_step_of_a_probe_and_the_settings_are_missed_too():
    norms = {n: v for n, v in BASE.steps[0].update_norm.items() if n != "head"}
    assert "update norm of head" in question(run(1, probes=probes(), update_norm=norms))
    assert "b in the probe" in question(
        run(1, probes={"ragged": probes()["ragged"].model_copy(update={"figures": {"a": 0.0}})})
    )
    assert "step of the probe" in question(
        run(1, probes={"ragged": probes()["ragged"].model_copy(update={"step": None})})
    )
    assert "settings in force" in question(run(1, probes=probes()).model_copy(update={"effective": {}}))


def test_cut_sketches_are_missed():
    cut = {name: rows[:-1] for name, rows in BASE.steps[0].grad_sketch.items()}
    assert "whole gradient sketches" in question(run(1, probes=probes(), grad_sketch=cut))
