# Sourced by tune.sh and test.sh: makes .venv and installs attune-lab into it, once per change of what is needed.
# Usage: prepare_environment EXTRAS    (EXTRAS is '' or e.g. '[dev]')

find_python() {
    local candidate
    for candidate in "${PYTHON:-}" python3.13 python3.12 python3.11 python3 python; do
        [ -n "$candidate" ] || continue
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    echo "attune-lab needs Python 3.11 or newer on PATH (or named in PYTHON=...)" >&2
    return 3
}

prepare_environment() {
    local extras="$1" python wanted stamp=".venv/.installed$1"
    wanted=$(cat pyproject.toml constraints.txt | cksum)
    if [ -x .venv/bin/python ] && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then
        return
    fi
    python=$(find_python) || return
    echo "Installing attune-lab$extras into .venv ..." >&2
    [ -x .venv/bin/python ] || "$python" -m venv .venv || {
        echo "python -m venv failed; on Debian or Ubuntu install the package python3-venv" >&2
        return 3
    }
    .venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".$extras"
    echo "$wanted" > "$stamp"
}
