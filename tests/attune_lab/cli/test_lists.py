"""What `attune recipes`, `models`, `clusters`, `tuners`, `lessons` and `doctor` print."""

import pytest


@pytest.mark.parametrize("command", ["recipes", "models", "clusters", "tuners", "lessons", "doctor"])
def test_80_columns_are_enough(attune, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "80")
    shown = attune(command).stdout
    assert max(map(len, shown.splitlines())) <= 80
    assert "…" not in shown


def test_the_doctor_names_what_pictures_and_kernel_tables_need(attune):
    checks = {check["name"]: check for check in attune("doctor", "--json").json["checks"]}
    assert not checks["matplotlib"]["needed"]
    assert not checks["pandas"]["needed"]
