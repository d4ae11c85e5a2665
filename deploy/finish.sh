#!/bin/sh
# The last step of a build stage of the Dockerfile: finish.sh cpu|cuda. Installs Glossa's own wheel beside its pinned
# packages, removes commands that no container needs, and writes the SBOM of what is then installed.
set -eu

target=$1 home=/opt/glossa sbom=/opt/glossa/share/sbom.cdx.json
/opt/build/bin/pip --python $home/bin/python install --quiet --no-deps --report /opt/own.json /opt/wheel/*.whl
find $home/bin -mindepth 1 ! -name glossa ! -name 'python*' -delete

mkdir -p "${sbom%/*}"
cd /src
$home/bin/python -I deploy/sbom/inventory.py >/opt/inventory.json
/opt/build/bin/python -m deploy.sbom --target "$target" --revision "${REVISION:-}" --created "${CREATED:-}" \
  --report /opt/pinned.json --report /opt/own.json </opt/inventory.json >$sbom
