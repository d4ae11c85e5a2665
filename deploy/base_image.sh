#!/usr/bin/env bash
# Where no registry can be reached: a base image from Debian packages, as localhost/glossa-base. Uses the package mirror
# that mmdebstrap or debootstrap is set up for, or MIRROR. Needs root.
set -euo pipefail

name=localhost/glossa-base
suite=bookworm  # the first Debian with Python 3.11
packages=python3,python3-venv,libstdc++6,ca-certificates

command -v buildah >/dev/null || { echo "no buildah here; install the buildah package" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

echo "building $name from Debian $suite; this takes a few minutes"
if command -v mmdebstrap >/dev/null; then
  mmdebstrap --quiet --variant=essential --include="$packages" \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='path-exclude=/usr/share/info/*' \
    "$suite" "$work/base.tar" ${MIRROR:+"$MIRROR"}
elif command -v debootstrap >/dev/null; then
  debootstrap --variant=minbase --include="$packages" "$suite" "$work/root" ${MIRROR:+"$MIRROR"} >"$work/log" ||
    { tail -20 "$work/log" >&2; exit 1; }
  (cd "$work/root" && rm -rf usr/share/{doc,man,locale,info} var/lib/apt/lists/* var/cache/apt/*)
  tar -C "$work/root" -cf "$work/base.tar" .
else
  echo "neither mmdebstrap nor debootstrap here; install one of these packages" >&2
  exit 1
fi

container=$(buildah from scratch)
trap 'buildah rm "$container" >/dev/null; rm -rf "$work"' EXIT
buildah add --quiet "$container" "$work/base.tar" / >/dev/null
buildah commit --quiet "$container" "$name" >/dev/null
echo "$name is ready"
