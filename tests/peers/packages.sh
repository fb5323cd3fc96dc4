#!/usr/bin/env bash
# Makes the Debian packages, looks into them, and installs and runs them in a clean root.
#   tests/peers/packages.sh                   builds what is packed (preset package; PAGODA_CUDA=ON packs pagoda-cuda too)
#   tests/peers/packages.sh --prebuilt FILE   packs this executable instead, with PAGODA_CUDA=ON and pagoda_cuda.so beside it:
#                                             quick, for work on the packages themselves
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/peers/clean_root.sh
fail() { echo "FAILED: $*"; exit 1; }

build=build/package
for tool in file:file dpkg-shlibdeps:dpkg-dev; do
  have_tool "${tool%:*}" "${tool#*:}" || { echo "SKIPPED: no ${tool%:*} (Debian package ${tool#*:})"; exit 0; }
done
cmake --preset package -DPAGODA_CUDA="${PAGODA_CUDA:-OFF}" >build/package.log 2>&1 || { cat build/package.log; exit 1; }
if [ "${1:-}" = --prebuilt ]; then
  install -D "$2" "$build/daemon/pagoda"
  [ "${PAGODA_CUDA:-OFF}" = OFF ] || install -D "$(dirname "$2")/pagoda_cuda.so" "$build/daemon/pagoda_cuda.so"
else
  cmake --build --preset package
fi
rm -rf "$build/packages"
(cd "$build" && cpack) >>build/package.log 2>&1 || { tail -20 build/package.log; exit 1; }

version=$(sed -n 's/^project(pagoda VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
package=$(echo "$build"/packages/pagoda_"$version"_*.deb)
[ -f "$package" ] || fail "no $package"
contents=$(dpkg-deb --contents "$package" | awk '{print $1, $2, $6}')
for path in ./usr/bin/pagoda ./usr/lib/systemd/system/pagoda.service ./usr/lib/sysusers.d/pagoda.conf \
            ./usr/lib/tmpfiles.d/pagoda.conf ./etc/pagoda/pagoda.yaml ./usr/share/pagoda/models/fable-7m/config.json \
            ./usr/share/pagoda/proto/pagoda/v1/inference.proto ./usr/share/pagoda/grafana/pagoda.json \
            ./usr/share/pagoda/alerts/rules.yaml ./usr/share/doc/pagoda/copyright; do
  grep -qF " root/root $path" <<<"$contents" || fail "$path is not in $package"
done
grep -E '\.(a|h|cc|o)$|/usr/include|/local/' <<<"$contents" && fail "the package has files of a build"
[ "$(dpkg-deb --field "$package" Package)" = pagoda ] || fail "its name"
dpkg-deb --field "$package" Depends | grep 'libgrpc++1' >/dev/null || fail "it does not depend on gRPC: $(dpkg-deb --field "$package" Depends)"
# Not -q, which ends before the tool has written all.
dpkg-deb --info "$package" | grep conffiles >/dev/null || fail "its settings are no conffile"
echo "ok: $(basename "$package"): $(wc -l <<<"$contents") entries, $(stat -c %s "$package") bytes"

unit=$(mktemp -d)
trap 'rm -rf "$unit"' EXIT
dpkg-deb --fsys-tarfile "$package" | tar -C "$unit" -xf - ./usr/lib
if command -v systemd-analyze >/dev/null; then
  score=$(systemd-analyze security --offline=true --threshold=20 "$unit/usr/lib/systemd/system/pagoda.service" | tail -1) ||
    fail "the service is too exposed: $score"
  echo "ok: $score"
else
  echo "SKIPPED: no systemd-analyze, so the service's exposure is not known"
fi

[ "$(id -u)" -eq 0 ] || { echo "SKIPPED: a clean root needs root"; exit 0; }
root=build/clean_root
make_clean_root "$root" || exit 0
cp "$build"/packages/pagoda_*.deb "$root/tmp/"
in_root "$root" sh -ec 'apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends /tmp/pagoda_*.deb' \
  >build/package-install.log 2>&1 || { tail -20 build/package-install.log; fail "it does not install"; }
in_root "$root" pagoda version || fail "pagoda version"
in_root "$root" getent passwd pagoda >/dev/null || fail "there is no user pagoda"
# Every default that the settings file shows is one; files that an administrator has to make are not there.
sed -n '/example\|credentials\|\/tls\//d; s/^#\([a-z-]*: \)/\1/p' "$root/etc/pagoda/pagoda.yaml" >"$root/tmp/shown.yaml"
[ "$(wc -l <"$root/tmp/shown.yaml")" -gt 10 ] || fail "the settings file shows no settings"
in_root "$root" pagoda serve --config=/tmp/shown.yaml --check-config || fail "the settings file shows what is none"
# What the service's ExecStart runs, as its user, on the simulated device; process 1 of its namespace.
cat >"$root/tmp/serve.sh" <<'SERVE'
set -e
setpriv --reuid=pagoda --regid=pagoda --clear-groups pagoda serve --config=/etc/pagoda/pagoda.yaml --device=sim 2>/tmp/pagoda.log &
pid=$!
for _ in $(seq 100); do pagoda health >/dev/null 2>&1 && break; sleep 0.1; done
pagoda health
pagoda generate "Once upon a time" --max-tokens=4 >/dev/null
kill -TERM $pid
wait $pid
SERVE
in_root --alone "$root" sh /tmp/serve.sh || { cat "$root/tmp/pagoda.log"; fail "the installed daemon does not serve"; }
in_root "$root" dpkg --purge pagoda >>build/package-install.log 2>&1 || fail "it does not go away"
[ ! -e "$root/usr/bin/pagoda" ] && [ ! -e "$root/etc/pagoda/pagoda.yaml" ] || fail "it leaves files behind"
echo "ok: installed, served, removed in a clean Debian 12"

cuda=$(echo "$build"/packages/pagoda-cuda_*.deb)
if [ -f "$cuda" ]; then
  dpkg-deb --contents "$cuda" | grep -q 'pagoda/pagoda_cuda.so' || fail "no module in $cuda"
  dpkg-deb --field "$cuda" Depends | grep -qF "pagoda (= $version)" || fail "$cuda is not tied to its pagoda"
  echo "ok: $(basename "$cuda")"
else
  echo "SKIPPED: pagoda-cuda, for which PAGODA_CUDA=ON and nvcc are needed"
fi
