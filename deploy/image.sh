#!/usr/bin/env bash
# Builds the image: image.sh cpu|cuda NAME. With docker if its daemon answers, else with buildah. The wheels are fetched
# here, with the mirror, proxy and certificates pip is set up for, and the build itself has no network.
#
# BASE_IMAGE names another base, best by digest. Without it: a base from base_image.sh if there is one, else the
# Dockerfile's own, and where that cannot be pulled a base is made. SOURCE_URL is the repository's address for the labels;
# without it, that of the remote `origin`. The SBOM that the image holds is copied to build/sbom-TARGET.cdx.json.
set -euo pipefail
cd "$(dirname "$0")/.."

target=${1:?cpu or cuda} name=${2:?name of the image}
case $target in
  cpu) requirements=serve.txt ;;
  cuda) requirements=gpu.txt ;;
  *) echo "the target is cpu or cuda, got $target" >&2; exit 1 ;;
esac

if docker info >/dev/null 2>&1; then
  builder=docker
elif command -v buildah >/dev/null; then
  builder=buildah
else
  echo "neither a docker daemon nor buildah here; install one of them" >&2
  exit 1
fi

default_base=$(sed -n 's/^ARG BASE_IMAGE=//p' Dockerfile)
if [ -z "${BASE_IMAGE:-}" ] && [ $builder = buildah ]; then
  if buildah inspect --type image localhost/glossa-base >/dev/null 2>&1; then
    BASE_IMAGE=localhost/glossa-base
  elif ! buildah pull --quiet "$default_base" >/dev/null 2>&1; then
    echo "$default_base cannot be pulled"
    deploy/base_image.sh
    BASE_IMAGE=localhost/glossa-base
  fi
fi

# Wheels for the image's Python, whatever Python fetches them.
machine=$(uname -m)
wheels_for=(--python-version 3.11 --implementation cp --abi cp311 --abi abi3 --abi none --platform any)
for libc in $(seq -f manylinux_2_%g 36 -1 17) manylinux2014; do  # Debian 12 has glibc 2.36
  wheels_for+=(--platform "${libc}_$machine")
done
rm -rf build/wheels
.venv/bin/python -m pip download -qq --disable-pip-version-check --no-deps --require-hashes --only-binary :all: "${wheels_for[@]}" \
  -r requirements/build.txt -r "requirements/$requirements" -r requirements/otel.txt -r requirements/oidc.txt --dest build/wheels
trap 'rm -rf build/wheels' EXIT

base=${BASE_IMAGE:-$default_base}
if [[ $base == *@sha256:* ]]; then
  digest=${base##*@}
elif [ $builder = docker ]; then
  docker pull --quiet "$base" >/dev/null || true  # may be a local image
  digest=$(docker image inspect --format '{{range .RepoDigests}}{{.}}{{"\n"}}{{end}}' "$base" | sed -n '1s/.*@//p')
else
  digest=$(buildah inspect --type image --format '{{.FromImageDigest}}' "$base")
fi
source_url=${SOURCE_URL:-$(git remote get-url origin 2>/dev/null || true)}
labels=()
if [[ $source_url == https://* ]]; then
  for label in source url documentation; do labels+=(--label "org.opencontainers.image.$label=${source_url%.git}"); done
else
  echo "no labels source, url, documentation: set SOURCE_URL to the https:// address of the repository"
fi
[ -z "$digest" ] || labels+=(--label "org.opencontainers.image.base.digest=$digest")

arguments=(
  --target "$target" --tag "$name" --network none
  --build-arg PIP_NO_INDEX=1
  --build-arg "BASE_IMAGE=$base"
  --build-arg "VERSION=$(sed -n 's/^VERSION = "\(.*\)"/\1/p' clients/python/glossa/version.py)"
  --build-arg "REVISION=$(git rev-parse HEAD 2>/dev/null || true)"
  --build-arg "CREATED=$(date -u +%Y-%m-%dT%H:%M:%SZ)"
  "${labels[@]}"
)
sbom=/opt/glossa/share/sbom.cdx.json copy=build/sbom-$target.cdx.json
if [ $builder = docker ]; then
  docker build "${arguments[@]}" .
  docker run --rm --network none --entrypoint cat "$name" $sbom >"$copy"
else
  # crun, which buildah prefers, refuses machines that mount cgroup controllers one by one; runc does not.
  runc=$(command -v runc || true)
  buildah build ${runc:+--runtime "$runc"} --format docker "${arguments[@]}" .  # the OCI format has no HEALTHCHECK
  container=$(buildah from "$name")
  trap 'rm -rf build/wheels; buildah rm "$container" >/dev/null' EXIT
  buildah run ${runc:+--runtime "$runc"} "$container" -- cat $sbom >"$copy"
fi
echo "built $name ($target) with $builder; its SBOM is $copy"
