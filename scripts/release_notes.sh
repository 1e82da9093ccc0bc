#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Turns the fragments in docs/changes/ into a section of CHANGELOG.md and removes them.
set -euo pipefail

usage() {
  echo "usage: scripts/release_notes.sh VERSION [--print]"
  echo "  --print  only print the section"
}
version="" print=0
for argument in "$@"; do
  case "$argument" in
    --print) print=1 ;;
    -*) usage; exit 2 ;;
    *) version=$argument ;;
  esac
done
[[ -n $version ]] || { usage >&2; exit 2; }
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

shopt -s nullglob
fragments=()
for file in docs/changes/*.md; do [[ $file == docs/changes/README.md ]] || fragments+=("$file"); done
for file in "${fragments[@]}"; do
  grep -qxE 'kind: (safety-and-performance|features|internals)' "$file" \
    || { echo "release_notes: $file has no line 'kind: safety-and-performance', 'kind: features' or 'kind: internals'" >&2; exit 1; }
done

section() {
  echo "## $version"
  for kind in "safety-and-performance:Safety and performance" "features:Features" "internals:Internals"; do
    local heading=0
    for file in "${fragments[@]}"; do
      grep -qx "kind: ${kind%%:*}" "$file" || continue
      ((heading++)) || printf '\n### %s\n\n' "${kind#*:}"
      # The text after the head, as one list item.
      awk '/^---$/ { rules++; next } rules >= 2 && NF { printf "%s%s", n++ ? "\n  " : "- ", $0 } END { print "" }' "$file"
    done
  done
}

if ((print)); then
  section
  exit 0
fi
((${#fragments[@]})) || { echo "release_notes: docs/changes/ has no fragments" >&2; exit 1; }
notes=$(section)
awk -v notes="$notes" '/^## / && !done { print notes "\n"; done = 1 } { print } END { if (!done) print "\n" notes }' CHANGELOG.md >CHANGELOG.md.new
mv CHANGELOG.md.new CHANGELOG.md
rm "${fragments[@]}"
echo "CHANGELOG.md has a section $version from ${#fragments[@]} fragments"
