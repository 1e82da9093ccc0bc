#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Exports the traces of a run for other tools, with the clocks of all hosts aligned.

  scripts/export_traces.py RUN_DIR OUT_DIR

OUT_DIR/merged.json has all ranks, one process each, with an arrow from each awaited task to its waiter (gradient ready
-> bucket -> update); open it in https://ui.perfetto.dev. OUT_DIR/hta/rank*.json are for HolisticTraceAnalysis, which
knows communication by names such as ncclKernel_all_reduce and takes all other events of a stream for computation, so
that waits are left out there.
"""
import argparse
import collections
import json
import pathlib
import re
import statistics
import sys


COMPUTE = 0  # the row of the compute stream


class Refusal(Exception):
    """The run folder lacks something that an export needs."""


def read(path):
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise Refusal(f"{path} cannot be read: {error}.") from error


def rendezvous_of(event):
    """A key that is equal on all members of one communication: (step, name). The two ends of a message differ only in
    verb and part."""
    args = event["args"]
    item = args.get("item", event["name"])
    if args.get("Collective name") in ("send", "recv"):
        item = re.sub(r"\.part\d+", "", item.split(".", 1)[1])
    return args["step"], item


def offsets_of(traces):
    """{rank: the ns by which its clock is ahead of the first rank's}. The members of a communication end it
    together."""
    ends = {rank: {rendezvous_of(event): event["ts"] + event["dur"] for event in events
                   if event["ph"] == "X" and "Collective name" in event["args"]} for rank, events in traces.items()}
    first, *others = sorted(ends)
    ahead, reached = {first: 0.0}, [first]
    while reached:
        known = reached.pop(0)
        for rank in others:
            shared = ends[rank].keys() & ends[known].keys()
            if rank not in ahead and shared:
                apart = [ends[rank][rendezvous] - ends[known][rendezvous] for rendezvous in shared]
                ahead[rank] = ahead[known] + statistics.median(apart)
                reached.append(rank)
    return {rank: ahead.get(rank, 0.0) for rank in ends}


def stage_of(plan, rank):
    coordinates = plan.get("coordinates", [])
    pipeline = plan.get("axes", ["data", "context", "pipeline", "tensor"]).index("pipeline")
    return coordinates[rank][pipeline] if rank < len(coordinates) else 0


def flows_of(plan, rank, events, first_id):
    """Arrows from the end of an item to the start of an item of another channel that waits for it."""
    stages = plan.get("stages", [])
    stage = stage_of(plan, rank)
    has_waits = "after" in plan.get("item_columns", [])
    items = stages[stage].get("items", []) if has_waits and stage < len(stages) else []
    works = collections.defaultdict(list)  # by step and item
    for event in events:
        if event["ph"] == "X" and event["cat"] != "wait":
            works[(event["args"]["step"], event["args"].get("item", event["name"]))].append(event)
    steps = sorted({step for step, _ in works})
    flows = []
    for name, channel, *_, after in items:
        for awaited in (items[position] for position in after):
            if awaited[1] == channel:
                continue
            for step in steps:
                source, target = works.get((step, awaited[0])), works.get((step, name))
                if not source or not target:
                    continue
                begin, end = max(source, key=lambda e: e["ts"] + e["dur"]), min(target, key=lambda e: e["ts"])
                number = first_id + len(flows) // 2
                common = {"cat": "plan", "name": "dependency", "id": number}
                flows.append({"ph": "s", **common, "pid": begin["pid"], "tid": begin["tid"],
                              "ts": round(begin["ts"] + begin["dur"] - 0.001, 3)})
                flows.append({"ph": "f", "bp": "e", **common, "pid": end["pid"], "tid": end["tid"],
                              "ts": round(end["ts"] + 0.001, 3)})
    return flows


def for_hta(trace, events, entered):
    """The events as HolisticTraceAnalysis counts them. As in metrics.jsonl, communication begins when its last member
    enters; work beside the compute stream is a copy."""
    kept = []
    for event in events:
        if event["ph"] == "X":
            if event["cat"] == "wait":
                continue
            if "Collective name" in event["args"]:
                begin = min(max(event["ts"], entered[rendezvous_of(event)]), event["ts"] + event["dur"])
                event = {**event, "name": f"ncclKernel_{event['args']['Collective name']} {event['name']}",
                         "ts": round(begin, 3), "dur": round(event["ts"] + event["dur"] - begin, 3)}
            elif event["tid"] != COMPUTE:
                event = {**event, "name": f"Memcpy {event['name']}"}
            event = {**event, "cat": "kernel"}
        kept.append(event)
    return {**trace, "traceEvents": kept}


def export(run, out):
    paths = sorted((run / "trace").glob("rank*.json"))
    if not paths:
        raise Refusal(f"{run} has no trace. Set trace.steps in the run file.")
    plan = read(run / "plan.json") if (run / "plan.json").exists() else {}
    traces = {}
    for path in paths:
        trace = read(path)
        traces[trace["distributedInfo"]["rank"]] = trace
    ahead = offsets_of({rank: trace["traceEvents"] for rank, trace in traces.items()})
    (out / "hta").mkdir(parents=True, exist_ok=True)
    merged, arrows, entered, aligned = [], 0, {}, {}
    for rank, trace in sorted(traces.items()):
        aligned[rank] = [{**event, "ts": round(event["ts"] - ahead[rank], 3)} if "ts" in event else event
                         for event in trace["traceEvents"]]
        for event in aligned[rank]:
            if event["ph"] == "X" and "Collective name" in event["args"]:
                rendezvous = rendezvous_of(event)
                entered[rendezvous] = max(entered.get(rendezvous, event["ts"]), event["ts"])
    for rank, trace in sorted(traces.items()):
        events = aligned[rank]
        flows = flows_of(plan, rank, events, arrows)
        arrows += len(flows) // 2
        merged += [*events, {"ph": "M", "name": "process_sort_index", "pid": rank, "tid": 0,
                             "args": {"sort_index": rank}}, *flows]
        # HolisticTraceAnalysis finds the rank by the text "rank": N.
        (out / "hta" / f"rank{rank:04}.json").write_text(json.dumps(for_hta(trace, events, entered)))
    (out / "merged.json").write_text(json.dumps({"displayTimeUnit": "ns", "traceEvents": merged}))
    print(f"{out}/merged.json: {len(traces)} ranks, {arrows} arrows; {out}/hta: one file per rank. Clocks were apart by "
          f"at most {max(abs(us) for us in ahead.values()):.1f} us.")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=pathlib.Path, metavar="RUN_DIR")
    parser.add_argument("out", type=pathlib.Path, metavar="OUT_DIR")
    options = parser.parse_args()
    try:
        export(options.run, options.out)
    except (Refusal, KeyError, TypeError) as problem:
        sentence = problem if isinstance(problem, Refusal) else f"{options.run} has a damaged trace: {problem!r}."
        print(f"export_traces: {sentence}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
