"""Signals against signals: legitimate rounding passes, a fault is found where it is and named."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attune_lab.gate.evidence import check, check_alone
from attune_lab.gate.evidence.bands import FLOORS, floors_of
from attune_lab.gate.evidence.families import Family
from attune_lab.gate.evidence.invariants import total_norm
from attune_lab.signals import Probe, read_signals
from tests.attune_lab.gate.evidence.signals_for_tests import SETTINGS, gradients, record, rounded, run, scaled, sketch

BASE = run()
NORM = total_norm(BASE.steps[0])


def checks(candidate, baseline=BASE, twins=()):
    return {c.name: c for c in check(baseline, candidate, twins)}


def rejected(candidate, baseline=BASE, twins=()):
    return {name: c for name, c in checks(candidate, baseline, twins).items() if c.outcome == "reject"}


def undecided(candidate, baseline=BASE):
    return {name for name, c in checks(candidate, baseline).items() if c.outcome == "inconclusive"}


def test_a_right_run_breaks_no_invariant():
    assert {c.outcome for c in check_alone(BASE)} == {"pass"}


@settings(max_examples=40)
@given(seed=st.integers(0, 200))
def test_rounding_passes_every_check(seed):
    found = check(BASE, run(seed))
    assert {c.outcome for c in found} == {"pass"}
    assert all(c.figures.get("value", 0.0) <= c.figures["limit"] for c in found if "limit" in c.figures)


@settings(max_examples=40)
@given(factor=st.sampled_from([0.25, 0.5, 2.0, 4.0]), seed=st.integers(0, 50))
def test_a_factor_on_all_gradients_is_a_wrong_scale(factor, seed):
    found = rejected(run(seed, lambda g: scaled(g, factor)))
    assert found["gradient.norm"].family == Family.SCALE
    assert f"which is {'1/' if factor < 1 else ''}{max(factor, 1 / factor):.0f}" in found["gradient.norm"].reason


@pytest.mark.parametrize(
    ("part", "family"),
    [
        ("experts", Family.EXPERTS), ("router", Family.ROUTER), ("norm", Family.REDUCTION),
        ("attention", Family.ATTENTION), ("embedding", Family.TIED), ("head", Family.TIED),
    ],
)  # fmt: skip
def test_a_factor_on_one_group_names_it(part, family):
    found = rejected(run(3, lambda g: scaled(g, 0.9, part)))["gradient.norm"]
    assert found.family == family
    assert part in found.reason
    assert "step 1" in found.reason


def test_a_gradient_of_the_right_length_that_points_elsewhere_is_found_by_its_sketch():
    found = rejected(run(1, lambda g: {n: v[::-1] if "attention" in n else v for n, v in g.items()}))
    assert "gradient.norm" not in found
    assert found["gradient.error"].family == Family.ATTENTION


@pytest.mark.parametrize(
    ("changes", "name", "family"),
    [
        ({"samples": "other"}, "ledger.batch", Family.BATCH),
        ({"sequences": 32}, "ledger.batch", Family.BATCH),
        ({"tokens": 2000}, "ledger.batch", Family.LABELS),
        ({"labels": "other"}, "ledger.batch", Family.LABELS),
        ({"positions": "other"}, "ledger.batch", Family.POSITIONS),
        ({"replicas": ("tp: final_norm",)}, "invariant.replicas", Family.REDUCTION),
        ({"stale": ("layers.1.mlp.fc1",)}, "invariant.stale", Family.STALE),
        ({"skipped": True}, "invariant.skipped", Family.OPTIMIZER),
        ({"dropped": 3}, "invariant.dropped", Family.DROPPED),
        ({"expert_load": {"layers.0": (1024, 1000, 1048, 1023)}}, "invariant.load", Family.DROPPED),
        ({"expert_load": {"layers.0": (4096, 0, 0, 0)}}, "load", Family.ROUTER),
        ({"clip_factor": 1.0}, "invariant.clip", Family.CLIPPING),
        ({"logged": {"lm loss": 3.1}}, "invariant.logged_loss", Family.LOGGING),
        ({"logged": {"grad norm": 1.002 * NORM}}, "invariant.logged_norm", Family.CLIPPING),
        ({"clip_factor": 1.001 / NORM}, "invariant.clip", Family.CLIPPING),
        ({"logged": {"load_balancing_loss": 0.02}}, "invariant.logged_aux", Family.ROUTER),
        ({"logged": {"learning rate": 1e-4}}, "invariant.learning_rate", Family.OPTIMIZER),
        ({"aux_loss": {}}, "aux_loss", Family.ROUTER),
        ({"loss": 6.2}, "loss", Family.LOSS),
        ({"loss": math.nan}, "invariant.finite", Family.PRECISION),
        ({"unchanged": {"head": 0.7}}, "unchanged", Family.PRECISION),
    ],
)  # fmt: skip
def test_each_signal_finds_its_fault(changes, name, family):
    found = rejected(run(1, **changes))
    assert found[name].family == family
    assert found[name].reason.endswith(".")


@settings(max_examples=40)
@given(field=st.sampled_from(["grad_norm", "weight_norm", "update_norm"]), bad=st.sampled_from([math.nan, math.inf]))
def test_what_is_no_number_never_passes(field, bad):
    steps = tuple(s.model_copy(update={field: {**getattr(s, field), "head": bad}}) for s in BASE.steps)
    assert rejected(BASE.model_copy(update={"steps": steps}))


def test_a_parameter_that_never_moves_or_has_no_gradient_is_frozen():
    still = {**BASE.steps[0].update_norm, "head": 0.0}
    assert rejected(run(1, update_norm=still))["invariant.frozen"].family == Family.FROZEN
    lost = rejected(run(1, lambda g: scaled(g, 0.0, "router")))["gradient.norm"]
    assert lost.family == Family.FROZEN
    assert lost.figures["value"] == 0


def test_what_the_baseline_breaks_too_is_not_held_against_the_candidate():
    broken = {"logged": {"lm loss": 3.1}}
    found = checks(run(1, **broken), run(0, **broken))["invariant.logged_loss"]
    assert found.outcome == "pass"
    assert "baseline has it too" in found.reason


def test_batches_that_differ_leave_gradients_uncompared():
    found = checks(run(1, lambda g: scaled(g, 2), samples="other"))
    assert found["gradient"].outcome == "skipped"
    assert "gradient.norm" not in found


def test_other_initial_weights_are_a_question_when_the_layout_draws_them_and_a_fault_when_it_does_not():
    moved = {n: v * 1.01 for n, v in BASE.steps[0].weight_norm.items()}
    assert "start.weights" in rejected(run(1, weight_norm=moved))
    assert "start.weights" in undecided(run(1, weight_norm=moved, settings={"tp": 4}))


def test_a_run_with_dropout_masks_of_another_layout_is_not_compared():
    dropout = {"hidden_dropout": 0.1}
    assert "start.dropout" in undecided(run(1, settings={**dropout, "tp": 4}), run(0, settings=dropout))


def test_twins_widen_the_band_within_reason():
    """Twins with 1 % on a group allow 3 %; a twin with a factor of 2 does not allow 2."""
    near, far = run(0, lambda g: scaled(g, 1.01, "attention")), run(0, lambda g: scaled(g, 2.0, "attention"))
    candidate = run(1, lambda g: scaled(g, 1.025, "attention"))
    assert "gradient.norm" in rejected(candidate)
    assert "gradient.norm" not in rejected(candidate, twins=[near])
    assert "gradient.norm" in rejected(run(1, lambda g: scaled(g, 2.0, "attention")), twins=[far])


def test_a_candidate_is_no_twin_of_itself():
    candidate = run(1, lambda g: scaled(g, 1.03, "attention"))
    assert "gradient.norm" in rejected(candidate, twins=[candidate])


def test_missing_records_are_asked_for():
    assert "ledger.steps" in undecided(BASE.model_copy(update={"steps": BASE.steps[:2]}))
    assert "ledger.recorded" in undecided(run(1, samples=""))
    assert "probe.aux" in undecided(BASE, run(probes={"aux": Probe(cost_steps=1)}))


def test_a_candidate_with_other_parameters_trains_another_model():
    fewer = {n: v for n, v in BASE.steps[0].grad_norm.items() if n != "head"}
    assert "lacks head" in rejected(run(1, grad_norm=fewer))["ledger.parameters"].reason


FIELDS = ("logged", "grad_norm", "grad_sketch", "update_norm", "weight_norm", "unchanged", "expert_load", "aux_loss")


@given(
    st.dictionaries(st.sampled_from(FIELDS), st.sets(st.sampled_from(["head", "final_norm", "lm loss", "layers.0"])))
)
def test_whatever_is_not_recorded_is_never_a_crash(kept):
    """Any part of a record may be missing, on either side."""
    step = BASE.steps[0]
    fields = {field: {k: v for k, v in getattr(step, field).items() if k in names} for field, names in kept.items()}
    poor = BASE.model_copy(update={"steps": (step.model_copy(update=fields), *BASE.steps[1:])})
    for pair in ((BASE, poor), (poor, BASE), (poor, poor)):
        assert all(c.reason.endswith(".") for c in check(*pair))
    assert not rejected(poor, poor)


def test_runs_without_records_or_settings_are_not_compared():
    bare = BASE.model_copy(update={"steps": (), "effective": {}})
    assert {c.outcome for c in check(bare, bare)} == {"pass", "skipped"}
    assert "ledger.steps" in undecided(bare)


@pytest.mark.parametrize(
    ("name", "right", "wrong", "family"),
    [
        ("repeat", {"difference": 0.0}, {"difference": 0.02}, Family.RACE),
        ("sgd", {"ratio": 1.0}, {"ratio": 0.5}, Family.SCALE),
        ("resume", {"loss": 0.0, "weights": 0.0}, {"loss": 1e-3, "weights": 0.0}, Family.RESUME),
        ("perturbation", {"future": 0.0}, {"future": 1e-3}, Family.ATTENTION),
        ("perturbation", {"masked": 0.0}, {"masked": math.nan}, Family.LABELS),
        ("unheard_of", {"x": 0.0}, {"x": 1.0}, Family.LOSS),
    ],
)
def test_figures_of_probes(name, right, wrong, family):
    good, bad = (run(1, probes={name: Probe(cost_steps=1, figures=figures)}) for figures in (right, wrong))
    assert not rejected(good, good)
    (found,) = rejected(bad, good).values()
    assert found.family == family
    assert found.name.startswith(f"probe.{name}.")


@pytest.mark.parametrize(("moved", "wrong"), [(6e-3, False), (0.1, True)])
def test_in_fp8_a_later_token_may_round_earlier_ones_anew(moved, wrong):
    candidate = run(1, probes={"perturbation": Probe(cost_steps=1, figures={"future": moved})})
    candidate = candidate.model_copy(update={"effective": {**candidate.effective, "fp8": "e4m3"}})
    baseline = candidate.model_copy(update={"probes": {}})
    found = {c.name: c.outcome for c in check(baseline, candidate)}
    assert found["probe.perturbation.future"] == ("reject" if wrong else "pass")


def _clipped(factor):
    step = record(1, gradients(9), clip_factor=factor, logged={})
    return Probe(cost_steps=1, step=step, figures={"clip_grad": 0.5})


def test_the_clipping_probe_has_its_own_threshold():
    right = 0.5 / math.hypot(*(float(n) for n in record(1, gradients(9)).grad_norm.values()))
    base, bare = (
        run(0, probes={"clip": probe})
        for probe in (_clipped(right), _clipped(right).model_copy(update={"figures": {}}))
    )
    assert not rejected(run(1, probes={"clip": _clipped(right)}), base)
    for baseline in (base, bare):
        assert (
            rejected(run(1, probes={"clip": _clipped(1.1 * right)}), baseline)["probe.clip.clip"].family
            == Family.CLIPPING
        )


def test_a_probe_step_is_compared_like_the_first_step():
    def probe(values):
        return {"aux": Probe(cost_steps=1, step=record(1, values))}

    base, near, far = gradients(5), rounded(gradients(5), 3), scaled(gradients(5), 0.5, "router")
    baseline = run(0, probes=probe(base))
    assert not rejected(run(1, probes=probe(near)), baseline)
    found = rejected(run(1, probes=probe(far)), baseline)["probe.aux.gradient.norm"]
    assert found.family == Family.ROUTER
    assert "in the probe aux" in found.reason


def test_gradients_that_all_turn_in_the_attention_probe_point_at_attention():
    def probe(seed, size):
        values = rounded(gradients(1), seed, size)
        return {name: Probe(cost_steps=1.0, step=record(1, values)) for name in ("attention", "ragged")}

    found = rejected(run(1, probes=probe(5, 0.3)), run(0, probes=probe(6, 1e-3)))
    assert found["probe.attention.gradient.error"].family is Family.ATTENTION
    assert found["probe.ragged.gradient.error"].family is not Family.ATTENTION


def test_tokens_that_change_experts_excuse_the_gradients_of_experts_and_no_more():
    moved = {"layers.0": (1034, 990, 1048, 1024)}
    turned = lambda g: rounded(g, 5, 0.09)  # noqa: E731
    assert "gradient.error" in rejected(run(1, turned))
    assert "gradient.error" not in rejected(run(1, turned, expert_load=moved))
    many = rejected(run(1, lambda g: rounded(g, 5, 0.9), expert_load={"layers.0": (2072, 0, 1000, 1024)}))
    assert {"load", "gradient.error"} <= many.keys()


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        ({"bf16": False}, {"bf16": False}, "fp32"), ({}, {}, "bf16"), ({"bf16": True}, {"bf16": True}, "bf16"),
        ({"fp8": "hybrid"}, {"fp8": "hybrid"}, "fp8"), ({"bf16": True}, {"fp8": True}, "another"),
        ({"bf16": False}, {"bf16": True}, "another"),
    ],
)  # fmt: skip
def test_floors_follow_the_precision_of_both_runs(before, after, kind):
    assert floors_of(before, after) == FLOORS[kind]


def test_learnt_weights_round_wider_and_have_no_sharpened_probe():
    learnt = {"settings": {"vocab_size": 2**20}}  # a guess among them has a loss of 13.9
    apart = lambda g: rounded(g, 5, 0.05)  # noqa: E731
    sharp = {"attention": Probe(cost_steps=1, step=record(1, scaled(gradients(1), 2.0)))}
    assert "gradient.error" in rejected(run(1, apart))
    found = checks(run(1, apart, probes=sharp, **learnt), run(0, probes=sharp, **learnt))
    assert found["gradient.error"].outcome == "pass"
    assert found["probe.attention"].outcome == "skipped"
    assert "gradient.norm" in rejected(run(1, lambda g: scaled(g, 1.1), **learnt), run(0, **learnt))


@given(layers=st.integers(1, 200))
def test_floors_of_gradients_widen_with_depth_as_the_published_bound(layers):
    """4 x 1.03^(L + 1) x 2^-7 bounds the relative error of any parameter's gradient in bfloat16 (TTrace)."""
    floors = floors_of({"num_layers": layers}, {"num_layers": layers})
    assert floors.parameter_error <= 2 * 4 * 1.03 ** (max(layers, 4) + 1) * 2**-7
    assert floors.load == FLOORS["bf16"].load
    assert floors.norm >= FLOORS["bf16"].norm


@settings(max_examples=40)
@given(seed=st.integers(0, 1000), size=st.floats(1e-4, 0.5))
def test_the_error_from_a_sketch_is_the_true_one_within_its_distribution(seed, size):
    """chi^2 with 16 degrees of freedom: the square root of the mean is within 0.2 to 1.91 but for about 1e-6."""
    from attune_lab.gate.evidence.gradients import parameter_errors

    values = {"head": gradients(1)["head"]}
    moved = rounded(values, seed, size)
    true = float(((moved["head"] - values["head"]) ** 2).sum() ** 0.5 / (values["head"] ** 2).sum() ** 0.5)
    estimate = parameter_errors(record(1, values), record(1, moved))["head"]
    assert 0.2 < estimate / true < 1.91
    assert sketch("head", values["head"]) != sketch("head", moved["head"])


def test_signals_survive_the_file(tmp_path):
    path = tmp_path / "signals.json"
    BASE.write(path)
    assert read_signals(path) == BASE
    run(1, loss=math.inf, clip_factor=math.nan).write(path)
    assert read_signals(path).steps[0].loss == math.inf
    assert math.isnan(read_signals(path).steps[0].clip_factor)
    assert SETTINGS["tp"] == BASE.effective["tp"]


@pytest.mark.parametrize("field", ["grad_norm", "update_norm", "weight_norm", "unchanged", "aux_loss"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
def test_a_size_that_is_no_size_is_rejected_at_any_step(field, value):
    right = run(1)
    sizes = getattr(right.steps[2], field)
    spoilt = right.steps[2].model_copy(update={field: {**sizes, next(iter(sizes)): value}})
    assert "invariant.finite" in rejected(right.model_copy(update={"steps": (*right.steps[:2], spoilt)}))


def test_a_run_without_steps_says_nothing_of_its_inside():
    (only,) = check_alone(BASE.model_copy(update={"steps": ()}))
    assert only.outcome == "skipped"
