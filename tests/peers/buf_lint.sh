#!/usr/bin/env bash
# Lints proto/ with buf (PyPI: buf-bin, in a virtual environment under build/).
set -euo pipefail
cd "$(dirname "$0")/../.."
venv=build/venv
[ -x "$venv/bin/pip" ] || python3 -m venv "$venv"
[ -x "$venv/bin/buf" ] || "$venv/bin/pip" install -q buf-bin
"$venv/bin/buf" lint proto
echo "buf lint: clean"
