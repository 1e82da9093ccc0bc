#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs, builds, trains a small GPT on two processes, and generates text.
set -euo pipefail

usage() {
  echo "usage: scripts/quickstart.sh [TEXT]"
  echo "  TEXT  a text file to learn from, a megabyte or more; without one, the King James Bible of the distribution"
  echo "  data/quickstart.txt becomes a link to the text, so that the shipped run files and sweeps train on it as well."
}

text=""
for argument in "$@"; do
  case "$argument" in
    -h | --help) usage; exit 0 ;;
    -*) usage >&2; exit 2 ;;
    *) [[ -z $text ]] || { usage >&2; exit 2; }; text=$argument ;;
  esac
done
if [[ -n $text ]]; then
  [[ -r $text && -f $text ]] || { echo "quickstart: $text is not a file that can be read" >&2; exit 3; }
  text=$(realpath -- "$text")
fi

cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
say() { printf '\n== %s\n' "$*"; }

say "install"
scripts/setup.sh --optional

say "build"
started=$SECONDS
if [[ ! -f build/build.ninja ]]; then
  cuda=disabled
  if nvidia-smi -L >/dev/null 2>&1; then cuda=auto; fi
  mkdir -p runs
  meson setup build -Dcuda=$cuda -Dnccl=$cuda >runs/build.log 2>&1 || { cat runs/build.log >&2; exit 1; }
fi
if [[ -t 1 ]]; then
  ninja -C build
else
  ninja -C build --quiet
fi
echo "build/slipstream is ready after $((SECONDS - started)) s"

say "text"
prompt="The "
link=data/quickstart.txt
mkdir -p data
echo '*' >data/.gitignore
if [[ -z $text ]]; then
  text=data/default.txt
  # Version 0.1 wrote the text where the link is now.
  if [[ -f $link && ! -L $link && ! -e $text ]]; then mv $link $text; fi
  if [[ ! -s $text ]]; then
    # Each line is a reference, such as "Ge1:1 ", and a verse. The references are removed.
    if command -v bible >/dev/null && bible -f 'gen1:1-rev22:21' </dev/null | sed -E 's/^[1-3]?[A-Za-z]+[0-9]+:[0-9]+ //; /^$/d' >$text.new \
        && (($(wc -c <$text.new) > 4000000)); then
      echo "the King James Bible, from the package bible-kjv"
    else
      echo "bible-kjv is not available; using the licence texts of the distribution"
      find -L /usr/share/common-licenses -type f -print0 | sort -z | xargs -0 cat >$text.new
    fi
    mv $text.new $text
  fi
  if grep -q '^In the beginning God created' $text; then prompt="And God said"; fi
  if [[ -L $link || ! -e $link ]]; then ln -sfn default.txt $link; fi
  if [[ $link -ef $text ]]; then text=$link; fi
elif [[ $text != "$(realpath -m -- $link)" ]]; then
  if [[ -f $link && ! -L $link && ! -e data/default.txt ]]; then mv $link data/default.txt; fi
  if [[ -L $link || ! -e $link ]]; then ln -sfn -- "$text" $link; fi  # a text of yours stays
fi
echo "$text: $(wc -c <"$text") bytes"

command -v mpirun >/dev/null || { echo "quickstart: mpirun is missing. Run scripts/setup.sh." >&2; exit 2; }
say "train: mpirun --bind-to none -np 2 build/slipstream train configs/runs/quickstart.toml --set data.train=$text"
# Open MPI refuses to run as root, and more ranks than cores, without these variables.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
if (($(nproc) < 2)); then export OMPI_MCA_rmaps_base_oversubscribe=1; fi
log=build/quickstart.log
started=$SECONDS
# Both ranks may use all cores; by default, Open MPI binds each rank to one core.
mpirun --bind-to none -np 2 build/slipstream train configs/runs/quickstart.toml --set "data.train=$text" 2>&1 | tee "$log"
echo "trained in $((SECONDS - started)) s"

# The sample has at most the 128 tokens of the model's context.
say "a sample: build/slipstream generate runs/quickstart --prompt \"$prompt\""
build/slipstream generate runs/quickstart --prompt "$prompt" --tokens 112

say "a report: build/slipstream report runs/quickstart"
build/slipstream report runs/quickstart

say "what happened"
sed -nE 's/^.*(overlap: .*)$/\1/p' "$log" | tail -1
echo "metrics:  runs/quickstart/metrics.jsonl, one line per step"
echo "timeline: runs/quickstart/trace/rank0000.json; open it in https://ui.perfetto.dev"
echo "report:   runs/quickstart/report.html; open it in a browser"
echo "weights:  runs/quickstart/checkpoints/final, safetensors with Hugging Face names"
echo "next:     README.md, docs/how-to/read-a-timeline.md"
