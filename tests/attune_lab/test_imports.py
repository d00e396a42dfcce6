"""Starting stays fast: heavy packages load on use, never on import."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "optuna", "skopt", "sklearn", "scipy", "pandas", "anthropic", "matplotlib", "sqlalchemy", "simpy")


@pytest.mark.parametrize("start", ["import attune_lab", "import attune_lab.contracts", "import attune_lab.cli"])
def test_heavy_packages_are_not_imported(start):
    code = f"{start}; import sys; print([m for m in {HEAVY!r} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"


def test_help_imports_nothing_heavy_and_no_arrays():
    code = (
        "import sys; sys.argv = ['attune', '--help']\n"
        "import attune_lab.cli\n"
        "try:\n    attune_lab.cli.main()\nexcept SystemExit:\n    pass\n"
        f"print([m for m in {(*HEAVY, 'numpy')!r} if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip().splitlines()[-1] == "[]"
    assert "tune" in done.stdout
