"""The catalog: valid, honest about its sources, and refused with the lesson's name when it is not."""

from __future__ import annotations

import pytest

from attune_lab.contracts import UserError
from attune_lab.lessons.catalog import load
from attune_lab.parameters import LAYOUT
from attune_lab.recipe.expressions import compile_expression

HELD_OUT = ("405b", "glm-4.5", "glm45", "8x22b", "minimax-m2")

GOOD = """
symptoms: {always: no symptom needed}
lessons:
- id: A
  title: Raise it
  symptoms: [always]
  moves: [{mbs: double}]
  step_time_pct: [-5.0, 0.0]
  basis: rule_of_thumb
  sources: [arXiv 2104.04473]
advice: []
"""


def test_the_shipped_catalog_is_valid_and_large() -> None:
    catalog = load()
    assert len(catalog.all()) >= 100
    assert len(catalog.lessons) >= 35
    assert len({lesson.id for lesson in catalog.all()}) == len(catalog.all())


def test_no_lesson_rests_on_a_held_out_model() -> None:
    for lesson in load().all():
        text = " ".join((lesson.title, lesson.note, lesson.retry, *lesson.sources)).lower()
        assert not any(name in text for name in HELD_OUT), lesson.id


def test_no_move_touches_the_objective() -> None:
    objective = {"gbs", "seq_len", "lr", "optimizer", "capacity_factor", "num_layers", "topk", "seed"}
    for lesson in load().lessons:
        assert lesson.objective == "none"
        assert not any(objective & set(move) for move in lesson.moves), lesson.id


def test_layout_moves_reorder_sums_and_say_so() -> None:
    for lesson in load().lessons:
        if any(set(move) & set(LAYOUT) for move in lesson.moves):
            assert lesson.numerics == "reordering", lesson.id


def test_a_precondition_on_something_unknown_does_not_hold() -> None:
    lesson = next(lesson for lesson in load().lessons if lesson.id == "C-tp-overlap")
    assert not lesson.holds({"tp": 4})
    assert lesson.holds({"tp": 4, "sequence_parallel": True, "exposed_tp_frac": 0.1, "tp_comm_overlap": False})


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (GOOD.replace("title: Raise it", "titel: Raise it"), "lesson A"),
        (GOOD.replace("moves: [{mbs: double}]", "preconditions: ['mbs >']"), "lesson A.preconditions"),
        (GOOD.replace("  step_time_pct: [-5.0, 0.0]\n", ""), "step_time_pct"),
        (GOOD.replace("[-5.0, 0.0]", "[0.0, -5.0]"), "best, worst"),
        (GOOD.replace("symptoms: [always]", "symptoms: [never]"), "unknown symptom never"),
        (GOOD.replace("  moves: [{mbs: double}]\n", ""), "lesson A: no moves"),
        (GOOD.replace("basis: rule_of_thumb", "basis: rule_of_thumb\n  objective: changes"), "objective"),
        ("symptoms: [", "not readable as YAML"),
    ],
)
def test_a_broken_catalog_names_the_lesson(tmp_path, broken: str, said: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(broken, encoding="utf-8")
    with pytest.raises(UserError, match=r"mine\.yaml") as caught:
        load(path)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_catalog_of_ones_own(tmp_path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(GOOD, encoding="utf-8")
    assert [lesson.id for lesson in load(path).lessons] == ["A"]


def test_every_precondition_is_an_expression() -> None:
    for lesson in load().all():
        for text in lesson.preconditions:
            assert compile_expression(text).text == text
