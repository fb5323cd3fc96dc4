#!/usr/bin/env bash
# The service under a real systemd: a clean Debian with the package in it, booted as a container in namespaces of its own.
#   tests/peers/systemd.sh [PACKAGE.deb] [PAGODA_BINARY]    default: what tests/peers/packages.sh made, with the executable in it
# Starts, restarts, watchdog, credentials, exit codes, drain. Says what kept it from it where the machine does not allow that.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/peers/clean_root.sh
package=${1:-$(ls build/package/packages/pagoda_[0-9]*.deb 2>/dev/null || true)}
binary=${2:-}
[ -f "$package" ] || { echo "SKIPPED: no package; tests/peers/packages.sh makes it"; exit 0; }
[ "$(id -u)" -eq 0 ] || { echo "SKIPPED: needs root"; exit 0; }
fail() { echo "FAILED: $*"; inside journalctl --no-pager -u pagoda 2>/dev/null | tail -15; exit 1; }

root=$PWD/build/systemd_root
make_clean_root "$root" || exit 0
cp "$package" "$root/tmp/pagoda.deb"
in_root "$root" sh -ec 'export DEBIAN_FRONTEND=noninteractive; apt-get update -qq
  apt-get install -y -qq --no-install-recommends systemd dbus curl /tmp/pagoda.deb' >build/systemd-install.log 2>&1 ||
  { echo "SKIPPED: systemd cannot be installed there: $(grep -m1 '^E:' build/systemd-install.log)"; exit 0; }
[ -z "$binary" ] || install "$binary" "$root/usr/bin/pagoda"
printf 'device: sim\nlog-level: info\n' >"$root/etc/pagoda/pagoda.yaml"
mkdir -p "$root/etc/systemd/system/pagoda.service.d"
printf '[Service]\nWatchdogSec=3\nRestartSec=1\n' >"$root/etc/systemd/system/pagoda.service.d/fast.conf"

# A root of its own by pivot_root: in a mere chroot the kernel gives no user namespaces, which PrivateUsers= needs.
# shellcheck disable=SC2016  # the inner shell's
unshare --fork --pid --mount --ipc --uts --net --cgroup --kill-child -- sh -ec '
  mount --make-rprivate / && mount --bind "$0" "$0" && cd "$0"
  mount -t proc proc proc && mount -t sysfs sysfs sys
  mount -t tmpfs tmpfs run && mount -t tmpfs tmpfs tmp && mount --rbind /dev dev
  if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
    mount -t cgroup2 cgroup2 sys/fs/cgroup
  else
    mount -t tmpfs cgroup sys/fs/cgroup && mkdir -p sys/fs/cgroup/systemd sys/fs/cgroup/unified
    mount -t cgroup -o none,name=systemd cgroup sys/fs/cgroup/systemd && mount -t cgroup2 cgroup2 sys/fs/cgroup/unified
    for controller in devices memory pids cpu; do
      mkdir -p "sys/fs/cgroup/$controller" && mount -t cgroup -o "$controller" cgroup "sys/fs/cgroup/$controller" || true
    done
  fi
  # Shared, as a container manager leaves it: credentials are mounted by a process that systemd forks.
  mkdir -p old && pivot_root . old && umount -l /old && mount --make-rshared /
  exec env -i container=pagoda-test PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --system' "$root" \
  </dev/null >build/systemd-boot.log 2>&1 &
boot=$!
trap 'kill -9 $boot 2>/dev/null || true; wait $boot 2>/dev/null || true' EXIT
init=
for _ in $(seq 100); do
  init=$(pgrep -P "$boot" -f /lib/systemd/systemd || true)
  [ -n "$init" ] && [ -S "/proc/$init/root/run/systemd/private" ] && break
  kill -0 $boot 2>/dev/null || break
  sleep 0.1
done
inside() { nsenter -t "$init" -m -p -i -u -n -C -r -w -- "$@"; }
[ -n "$init" ] && inside systemctl list-units >/dev/null 2>&1 ||
  { echo "SKIPPED: systemd does not come up here: $(tail -1 build/systemd-boot.log)"; exit 0; }
echo "ok: $(inside systemctl --version | head -1) boots in a container of its own"

nsenter -t "$init" -n ip link set lo up 2>/dev/null || true

property() { inside systemctl show pagoda -p "$1" --value; }
wait_until() {  # wait_until SECONDS PROPERTY VALUE
  for _ in $(seq $(($1 * 10))); do
    [ "$(property "$2")" = "$3" ] && return
    sleep 0.1
  done
  return 1
}

inside systemctl start pagoda || fail "it does not start"
[ "$(property ActiveState)" = active ] || fail "started, but $(property ActiveState)"
property StatusText | grep -q 'serving fable-7m' || fail "status: $(property StatusText)"
inside pagoda health | grep -q SERVING || fail "systemctl start returned before it serves"
echo "ok: READY=1 when it serves; status: $(property StatusText)"
main=$(property MainPID)
[ "$(inside ps -o user= -p "$main" 2>/dev/null || inside stat -c %U "/proc/$main")" = pagoda ] || fail "it does not run as pagoda"
inside grep -q 'CapEff:.0000000000000000' "/proc/$main/status" || fail "it has capabilities"
inside grep -q 'NoNewPrivs:.1' "/proc/$main/status" || fail "it may gain privileges"
inside grep -q 'Seccomp:.2' "/proc/$main/status" || fail "no system call filter"
echo "ok: user pagoda, no capabilities, no new privileges, system calls filtered"

inside sh -c 'kill -STOP '"$main"
wait_until 20 NRestarts 1 || fail "the watchdog does not see a process that stands still"
wait_until 20 ActiveState active || fail "it does not come back"
inside journalctl --no-pager -u pagoda | grep -q 'Watchdog timeout' || fail "no word of the watchdog"
echo "ok: one that stands still is ended by the watchdog and started again"
sleep 7
[ "$(property NRestarts)" = 1 ] || fail "the watchdog ends an idle daemon"
echo "ok: an idle one is left alone"

inside sh -c 'kill -KILL '"$(property MainPID)"
wait_until 20 NRestarts 2 && wait_until 20 ActiveState active || fail "no restart after a kill"
echo "ok: a killed one comes back"

inside sh -c 'curl -sN http://127.0.0.1:8000/v1/completions -H "Content-Type: application/json" \
  -d "{\"prompt\": \"Once\", \"max_tokens\": 300, \"ignore_eos\": true, \"stream\": true}" >/run/stream' &
stream=$!
sleep 0.7
inside systemctl stop pagoda
wait $stream || true
inside tail -3 /run/stream | grep -q 'DONE' || fail "a stream was cut off by systemctl stop"
[ "$(property Result)/$(property ExecMainStatus)" = success/0 ] || fail "stopped with $(property Result), $(property ExecMainStatus)"
echo "ok: systemctl stop lets streams finish; exit code 0"

inside sh -c 'printf "device: nonsense\n" >/etc/pagoda/pagoda.yaml'
inside systemctl start pagoda 2>/dev/null && fail "it starts with a bad setting"
sleep 3
[ "$(property ActiveState)/$(property ExecMainStatus)" = failed/2 ] || fail "a bad setting: $(property ActiveState), $(property ExecMainStatus)"
echo "ok: a bad setting fails with exit code 2 and is not tried again"

inside sh -c 'printf "device: sim\napi-key-file: /run/credentials/pagoda.service/api-keys\n" >/etc/pagoda/pagoda.yaml'
inside systemctl reset-failed pagoda
inside systemctl start pagoda 2>/dev/null && fail "it starts without the keys that it should ask for"
inside sh -c 'umask 077; echo sesame >/etc/pagoda/api-keys'
inside systemctl reset-failed pagoda
inside systemctl start pagoda || fail "it does not start with keys"
code() { inside curl -s -o /dev/null -w '%{http_code}' "$@" http://127.0.0.1:8000/v1/models; }
[ "$(code)/$(code -H 'Authorization: Bearer sesame')" = 401/200 ] || fail "keys: $(code), $(code -H 'Authorization: Bearer sesame')"
echo "ok: keys that only root can read come as a credential"
inside systemctl stop pagoda || fail "it does not stop"
echo "systemd: all passed"
