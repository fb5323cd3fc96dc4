# shellcheck shell=bash
# Sourced: clean Debian roots for tests of packages and containers, by debootstrap, kept as a tarball under build/.
# Needs root. The functions say what fails.

# have_tool TOOL PACKAGE: there, or installed now.
have_tool() {
  command -v "$1" >/dev/null && return
  [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null || return
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$2" >/dev/null 2>&1
  command -v "$1" >/dev/null
}

# make_clean_root DIR: a minimal Debian 12, the base of the container files, with this machine's way to Debian's packages.
make_clean_root() {
  local root=$1 tarball=build/clean_root.tar
  mkdir -p build
  if [ ! -s "$tarball" ]; then
    have_tool debootstrap debootstrap || { echo "SKIPPED: no debootstrap and no way to install it"; return 1; }
    echo "clean root: debootstrap --variant=minbase bookworm"
    local fresh
    fresh=$(mktemp -d)
    debootstrap --variant=minbase bookworm "$fresh" "${PAGODA_DEBIAN_MIRROR:-http://deb.debian.org/debian}" >build/debootstrap.log 2>&1 ||
      { echo "SKIPPED: debootstrap fails: $(grep -m1 '^E:' build/debootstrap.log)"; rm -rf "$fresh"; return 1; }
    tar -C "$fresh" -cf "$tarball.new" . && mv "$tarball.new" "$tarball"
    rm -rf "$fresh"
  fi
  rm -rf "$root"
  mkdir -p "$root"
  tar -C "$root" -xf "$tarball"
  # Its own folder was a temporary one, which users other than root may not enter.
  chmod 755 "$root"
  cp -L /etc/resolv.conf "$root/etc/resolv.conf" 2>/dev/null || true
  cp -a /etc/apt/apt.conf.d/. "$root/etc/apt/apt.conf.d/" 2>/dev/null || true
  rm -f "$root/etc/apt/apt.conf.d/"*docker*
}

# in_root [--alone] DIR COMMAND...: in namespaces of its own, as process 1, with /proc and /dev; alone: with no network but its own
# loopback, so that no port is taken.
in_root() {
  local net=() up=true
  if [ "$1" = --alone ]; then
    have_tool ip iproute2 || { echo "SKIPPED: no ip (Debian package iproute2)"; return 1; }
    net=(--net)
    up='ip link set lo up'
    shift
  fi
  local root=$1
  shift
  # shellcheck disable=SC2016  # the inner shell's
  unshare --fork --pid --mount --ipc --uts "${net[@]}" --kill-child -- sh -c "$up"' &&
    mount --make-rprivate / && mount --bind "$0" "$0" && mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev" &&
      exec chroot "$0" "$@"' "$root" "$@"
}
