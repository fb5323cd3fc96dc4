#!/usr/bin/env bash
# The container files, as far as the machine allows: docker, else buildah, else the runtime stage's own commands in a clean Debian.
#   tests/peers/containers.sh [PACKAGE_FOLDER]    default: what tests/peers/packages.sh made
# Says which way it went, and the line that stopped the others.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/peers/clean_root.sh
packages=${1:-build/package/packages}
mkdir -p build
fail() { echo "FAILED: $*"; exit 1; }

# ---- What can be known by reading
for file in deploy/container/Dockerfile.cpu deploy/container/Dockerfile.cuda; do
  [ "$(grep -c '^FROM ' $file)" -ge 2 ] || fail "$file has one stage"
  grep -q '^USER 65532:65532$' $file || fail "$file runs as root"
  grep -q '^HEALTHCHECK .*"pagoda", "health"' $file || fail "$file has no health check of our own client"
  grep -q '^STOPSIGNAL SIGTERM$' $file || fail "$file says no stop signal"
  grep -q -- '--shm-size\|/dev/shm' $file || fail "$file says nothing of shared memory"
  grep -qE '^(ENTRYPOINT|CMD) [^[]' $file && fail "$file starts a shell, which would get the signals"
done
echo "ok: both files: stages, user, health check, signals"

# ---- A real build
works_in_image() {  # works_in_image TOOL: a container of pagoda:cpu serves, is healthy, takes SIGTERM
  local id
  id=$("$1" run -d pagoda:cpu serve --device=sim)
  for _ in $(seq 100); do "$1" exec "$id" pagoda health >/dev/null 2>&1 && break; sleep 0.2; done
  "$1" exec "$id" pagoda health || return 1
  [ "$("$1" exec "$id" id -u)" = 65532 ] || return 1
  "$1" stop -t 60 "$id" >/dev/null
  [ "$("$1" inspect -f '{{.State.ExitCode}}' "$id")" = 0 ]
}
try() {  # try TOOL BUILD...: a real build and run, or the line that stopped it
  local tool=$1
  command -v "$tool" >/dev/null || { echo "no $tool"; return 1; }
  if ! timeout "${PAGODA_CONTAINER_SECONDS:-3600}" "$@" >"build/container-$tool.log" 2>&1; then
    echo "$tool: $(grep -iE 'error|cannot|denied|failed' "build/container-$tool.log" | tail -1)"
    return 1
  fi
}
if try docker build -f deploy/container/Dockerfile.cpu -t pagoda:cpu .; then
  works_in_image docker || fail "the image does not work"
  echo "ok: built and run by docker"
  exit 0
fi
if try buildah build -f deploy/container/Dockerfile.cpu -t pagoda:cpu .; then
  if command -v podman >/dev/null; then works_in_image podman || fail "the image does not work"; fi
  echo "ok: built by buildah"
  exit 0
fi

# ---- The same in a clean root: the packages stand for the first stage, the second stage's commands are the file's own
[ "$(id -u)" -eq 0 ] || { echo "SKIPPED: a clean root needs root"; exit 0; }
ls "$packages"/pagoda_[0-9]*.deb >/dev/null 2>&1 || { echo "SKIPPED: no package in $packages; tests/peers/packages.sh makes it"; exit 0; }
root=$PWD/build/container_root
make_clean_root "$root" || exit 0
cp "$packages"/pagoda_[0-9]*.deb "$root/tmp/"
# RUN of the last stage, with its continued lines.
awk '/^FROM /{run = ""} /^RUN /{sub(/^RUN /, ""); on = 1} on{line = $0; more = sub(/\\$/, "", line); run = run line "\n"; if (!more) on = 0}
     END{printf "%s", run}' deploy/container/Dockerfile.cpu | tr '\n' ' ' >"$root/tmp/run.sh"
in_root "$root" sh -ec "export DEBIAN_FRONTEND=noninteractive; . /tmp/run.sh" >build/container-root.log 2>&1 ||
  { tail -5 build/container-root.log; fail "the second stage's commands fail"; }
variables=$(awk '/^FROM /{v = ""} /^ENV /{sub(/^ENV /, ""); on = 1} on{line = $0; more = sub(/\\$/, "", line); v = v " " line; if (!more) on = 0}
                 END{print v}' deploy/container/Dockerfile.cpu)
# Read-only but for /tmp, user 65532, the daemon as process 1 of its namespace, 64 MiB of /dev/shm as docker gives.
cat >"$root/run.sh" <<'EOS'
set -e
mount -t tmpfs -o size=64m tmpfs /dev/shm && mount -t tmpfs tmpfs /tmp && mount -o remount,bind,ro /
exec setpriv --reuid=65532 --regid=65532 --clear-groups --no-new-privs --bounding-set=-all "$@"
EOS
rm -f build/container-serve.log
# shellcheck disable=SC2086  # the file's ENV, word by word
(in_root --alone "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin $variables sh /run.sh pagoda serve --device=sim 2>build/container-serve.log) &
outer=$!
trap 'kill -9 $outer 2>/dev/null || true' EXIT
inner=
for _ in $(seq 100); do
  inner=$(pgrep -u 65532 -f '^pagoda serve --device=sim' | head -1 || true)
  [ -n "$inner" ] && nsenter -t "$inner" -m -p -n -r -w env PAGODA_GRPC_ADDRESS=0.0.0.0:8001 pagoda health >/dev/null 2>&1 && break
  sleep 0.2
done
[ -n "$inner" ] || { cat build/container-serve.log; fail "it does not serve"; }
nsenter -t "$inner" -m -p -n -r -w env PAGODA_GRPC_ADDRESS=0.0.0.0:8001 pagoda health --timeout=5 || fail "the health check fails"
[ "$(awk '/^NSpid/{print $NF}' "/proc/$inner/status")" = 1 ] || fail "it is not process 1"
kill -TERM "$inner"
wait $outer || fail "SIGTERM to process 1 ends with code $?"
echo "ok: the second stage's commands, then the daemon as process 1, user 65532, on a read-only root: healthy, SIGTERM ends it with 0"
