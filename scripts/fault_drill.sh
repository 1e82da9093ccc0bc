#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Kills runs at random, resumes them and compares the results with uninterrupted runs; scripts/fault_drill.py --help.
exec python3 "$(dirname -- "${BASH_SOURCE[0]}")/fault_drill.py" "$@"
