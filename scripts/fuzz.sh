#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Fuzzes the readers of untrusted bytes with libFuzzer, AddressSanitizer and UndefinedBehaviorSanitizer.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

targets=(safetensors manifest flight toml shards tokenizer ranks llm_c megatron json_lines)
usage() {
  echo "usage: scripts/fuzz.sh [--seconds N] [--keep] [TARGET...]"
  echo "  Runs each target (${targets[*]}; default: all) for N seconds (default 60) from tests/fuzz/corpus/TARGET and"
  echo "  tests/fuzz/grown/TARGET.tar.gz. Builds and grown corpora are in build-fuzz/. An input that breaks a reader is"
  echo "  written to build-fuzz/TARGET-*; exit code 1."
  echo "  --keep  stores the fewest grown inputs that reach the same edges in tests/fuzz/grown/."
}
seconds=60
keeps=0
chosen=()
while (($#)); do
  case "$1" in
    --seconds) seconds=${2:?--seconds needs a number}; shift ;;
    --keep) keeps=1 ;;
    -h | --help) usage; exit 0 ;;
    *) if [[ " ${targets[*]} " != *" $1 "* ]]; then usage >&2; exit 2; fi; chosen+=("$1") ;;
  esac
  shift
done
if ((${#chosen[@]} == 0)); then chosen=("${targets[@]}"); fi

cxx=${FUZZ_CXX:-}
for candidate in clang++ clang++-14 clang++-18; do
  if [[ -z $cxx ]] && command -v "$candidate" >/dev/null; then cxx=$candidate; fi
done
build=build-fuzz
mkdir -p "$build"
if [[ -z $cxx ]] || ! echo 'extern "C" int LLVMFuzzerTestOneInput(const char*, unsigned long) { return 0; }' |
  "$cxx" -x c++ -fsanitize=fuzzer,address,undefined - -o "$build/probe" 2>/dev/null; then
  echo "SKIPPED fuzz: no clang with libFuzzer. scripts/setup.sh --fuzz installs it."
  exit 77
fi

# The sources of the readers, and those that they call.
config=(defaults field fields learning_rate load machine multipliers nearest reference resolve supported toml validate
  validate_data)
sources=(comm/flight.cpp comm/verdict.cpp engine/base/{check,document,files,json,parallel,units}.cpp
  engine/checkpoint/{direct_file,folder_tensor,manifest,safetensors}.cpp "${config[@]/#/engine/config/}"
  engine/data/{added_tokens,bpe,bpe_tokenizer,byte_alphabet,containers,document_index,document_parts,documents_by_id}.cpp
  engine/data/{foreign_tokens,hash,json_lines,json_text,make_tokenizer,megatron,normalizer,pattern,raw_tokens,shards,sidecar,text,text_input}.cpp
  engine/data/{tiktoken,token_source,tokenizer,tokenizer_json,unpack,words,write_tokenizer_json}.cpp tests/fuzz/trial.cpp)
sources=("${sources[@]%.cpp}")
# The sanitizers also observe the parsers of JSON and TOML, which are compiled from their headers. Packages of toml++
# have no assertions: one of version 3.3 fails for the table header "[+", which the parser then refuses.
flags=(-std=c++20 -O1 -gline-tables-only -I. -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined
  -fno-omit-frame-pointer -DSLIP_LIBFUZZER -DTOML_HEADER_ONLY=1 "'-DTOML_ASSERT(expr)=static_assert(true)'")
objects=()
makefile="$build/Makefile"
{
  printf 'all:'
  for target in "${chosen[@]}"; do printf ' %s/fuzz_%s' "$build" "$target"; done
  printf '\n'
  for source in "${sources[@]}" "${targets[@]/#/tests/fuzz/}"; do
    object="$build/${source//\//_}.o"
    [[ $source == tests/fuzz/* && $source != */trial ]] || objects+=("$object")
    printf '%s: %s.cpp\n\t%s %s -MMD -c $< -o $@\n-include %s\n' "$object" "$source" "$cxx" "${flags[*]}" "${object%.o}.d"
  done
  printf '%s/readers.a: %s\n\trm -f $@\n\tar rcs $@ $^\n' "$build" "${objects[*]}"
  for target in "${targets[@]}"; do
    printf '%s/fuzz_%s: %s/tests_fuzz_%s.o %s\n\t%s -fsanitize=fuzzer,address,undefined $^ -lfmt -lxxhash -lpcre2-8 -lutf8proc -lz -lzstd -lpthread -o $@\n' \
      "$build" "$target" "$build" "$target" "$build/readers.a" "$cxx"
  done
} >"$makefile"
make -s -j"$(nproc)" -f "$makefile" all

TMPDIR=$(mktemp -d -p "$([[ -w /dev/shm ]] && echo /dev/shm || echo /tmp)")
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT

# Edges alone, without their counts, give the fewest inputs.
keep_grown() {
  local target=$1 cover="$TMPDIR/cover" file
  cp -r "tests/fuzz/corpus/$target" "$cover"
  "$build/fuzz_$target" -set_cover_merge=1 -use_counters=0 -max_len=16384 "$cover" "$build/corpus/$target" 2>"$build/$target.merge.log"
  for file in "tests/fuzz/corpus/$target"/*; do rm "$cover/${file##*/}"; done
  mkdir -p tests/fuzz/grown
  tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -C "$cover" -c . | gzip -9n >"tests/fuzz/grown/$target.tar.gz"
  echo "fuzz: $target: $(find "$cover" -type f | wc -l) grown inputs kept"
  rm -r "$cover"
}

failed=0
for target in "${chosen[@]}"; do
  mkdir -p "$build/corpus/$target"
  grown="tests/fuzz/grown/$target.tar.gz"
  [[ ! -f $grown ]] || tar -xzf "$grown" -C "$build/corpus/$target"
  # Every input has at most 16 KiB, 10 s and 64 MiB for one allocation.
  if "$build/fuzz_$target" -max_total_time="$seconds" -max_len=16384 -timeout=10 -malloc_limit_mb=64 -rss_limit_mb=1024 \
    -artifact_prefix="$build/$target-" -print_final_stats=1 "$build/corpus/$target" "tests/fuzz/corpus/$target" \
    >"$build/$target.log" 2>&1; then
    echo "fuzz: $target: $(sed -n 's/^stat::number_of_executed_units: *//p' "$build/$target.log") inputs in $seconds s, no finding"
    ((keeps == 0)) || keep_grown "$target"
  else
    failed=1
    tail -n 40 "$build/$target.log" >&2
    echo "fuzz: $target: an input broke the reader; see $build/$target.log" >&2
  fi
done
exit $failed
