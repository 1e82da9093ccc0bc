# SPDX-License-Identifier: Apache-2.0
"""Flips a bit or cuts the end of every region of every file of a run."""
import json
import struct


def state_regions(file):
    """{name: (begin, end)} of a safetensors file: its length field, its header, the bytes of each tensor."""
    content = file.read_bytes()
    size = struct.unpack("<Q", content[:8])[0]
    regions = {"length": (0, 8), "header": (8, 8 + size)}
    for name, tensor in json.loads(content[8:8 + size]).items():
        if name != "__metadata__" and tensor["data_offsets"][0] < tensor["data_offsets"][1]:
            regions[name] = tuple(8 + size + offset for offset in tensor["data_offsets"])
    return regions


def manifest_regions(file):
    """{name: (begin, end)} of the members of a manifest, each up to the next one."""
    text = file.read_bytes()
    places = sorted((text.find(b'"' + key.encode() + b'"'), key) for key in json.loads(text))
    ends = [place for place, _ in places[1:]] + [len(text)]
    return {key: (place, end) for (place, key), end in zip(places, ends)}


def regions_of(folder):
    """[(kind, file, region, begin, end)] of the newest checkpoint and of the other files of a run."""
    found = []
    checkpoints = sorted((folder / "checkpoints").glob("step-*[0-9]"))
    for file in sorted(checkpoints[-1].iterdir()) if checkpoints else []:
        try:
            regions = manifest_regions(file) if file.name == "manifest.json" else state_regions(file)
        except (ValueError, struct.error):
            continue  # damaged by an earlier fault
        kind = "manifest" if file.name == "manifest.json" else "state"
        found += [(kind, file, name, begin, end) for name, (begin, end) in regions.items()]
    for kind, pattern in [("metrics", "metrics.jsonl"), ("record", "run.json"), ("record", "config.resolved.toml"),
                          ("lock", "lock"), ("flight", "flight/*.json")]:
        found += [(kind, file, "all", 0, file.stat().st_size) for file in sorted(folder.glob(pattern)) if file.stat().st_size]
    return found


class Damage:
    """Takes the regions in turn, so that all are damaged."""

    def __init__(self, random):
        self.random, self.counts = random, {}

    def pick(self, folder):
        """A region that was damaged least often."""
        regions = regions_of(folder)
        key = lambda region: (region[0], region[1].name, region[2])
        if not regions:
            return None
        kinds = {region[0] for region in regions}
        fewest = min(kinds, key=lambda kind: (self.counts.get(kind, 0), self.random.random()))
        chosen = min((region for region in regions if region[0] == fewest),
                     key=lambda region: (self.counts.get(key(region), 0), self.random.random()))
        for counted in (chosen[0], key(chosen)):
            self.counts[counted] = self.counts.get(counted, 0) + 1
        return chosen

    def apply(self, region):
        """Changes the file. Returns a description."""
        _, file, name, begin, end = region
        at = self.random.randrange(begin, end)
        content = bytearray(file.read_bytes())
        if self.random.random() < 0.6:
            content[at] ^= 1 << self.random.randrange(8)
            what = "a bit of"
        else:
            content = content[:at]
            what = "cut in"
        file.write_bytes(bytes(content))
        return f"{what} {file.name} ({name}) at byte {at}"
