#!/usr/bin/env bash
# The type generator of @grpc/proto-loader (0.8.1), told to write .d.ts files, writes enums that TypeScript (5.9.3) does
# not accept in such files.
#
# Whom: packages of npm that publish types of a .proto with an enum. Cost: every user whose compiler checks declarations
# (skipLibCheck is off by default) gets an error in a file of somebody else's package; the author's build shows none.
# Source: the README of @grpc/proto-loader, option --targetFileExtension of proto-loader-gen-types.
# Expected: declarations that compile. Seen: TS1254, an initializer in an ambient context.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-audit --no-fund @grpc/proto-loader@0.8.1 @grpc/grpc-js@1.14.1 typescript@5.9.3 >/dev/null
cat >colors.proto <<'PROTO'
syntax = "proto3";
package colors;
enum Color { UNKNOWN = 0; RED = 1; }
message Paint { Color color = 1; }
PROTO
echo "node $(node --version), proto-loader $(node -p 'require("@grpc/proto-loader/package.json").version'), typescript $(npx tsc --version)"
npx proto-loader-gen-types --outDir=types --grpcLib=@grpc/grpc-js --targetFileExtension=.d.ts colors.proto
echo "--- types/colors/Color.d.ts"
grep -A3 'export const' types/colors/Color.d.ts
found=$(npx tsc --noEmit types/colors/Color.d.ts || true)
echo "expected no error, seen: ${found:-none}"
grep -q TS1254 <<<"$found"
