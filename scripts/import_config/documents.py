# SPDX-License-Identifier: Apache-2.0
"""YAML and TOML as (dotted name, text of the value, line). Items of lists are NAME.0, NAME.1."""

import re

from options import Missing, Refused


def read_yaml(text, path):
    try:
        import yaml
    except ImportError:
        raise Missing(
            f"{path} is YAML, and Python has no PyYAML to read it. Install it with scripts/setup.sh or apt-get install "
            f"python3-yaml."
        ) from None
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else 1
        raise Refused(f"{path}:{line}: this is no YAML: {getattr(error, 'problem', None) or error}.") from None
    if not isinstance(root, yaml.MappingNode):
        raise Refused(f"{path}:1: a configuration is a mapping of keys and values.")
    rows = []

    def walk(node, name):
        if isinstance(node, yaml.MappingNode):
            # Keys that "<<" merges come first, so that the node's own keys replace them.
            yaml.SafeLoader("").flatten_mapping(node)
            for key, value in node.value:
                walk(value, f"{name}.{key.value}" if name else key.value)
            if not node.value:
                rows.append((name, "{}", node.start_mark.line + 1))
        elif isinstance(node, yaml.SequenceNode):
            for i, value in enumerate(node.value):
                walk(value, f"{name}.{i}")
            if not node.value:
                rows.append((name, "[]", node.start_mark.line + 1))
        else:
            null = node.tag.endswith(":null")
            rows.append((name, "null" if null else node.value, node.start_mark.line + 1))

    walk(root, "")
    return rows


def read_toml(text, path):
    try:
        import tomllib
    except ImportError:
        raise Missing(f"{path} is TOML, which Python reads from version 3.11 on. Install a newer one.") from None
    try:
        root = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"\(at line (\d+)", str(error))
        raise Refused(f"{path}:{found[1] if found else 1}: this is no TOML: {error}.") from None
    lines = text.split("\n")

    def line_of(table, key):
        """The line of a key, because tomllib keeps no lines: the key after the head of its table. A dotted or inline
        key may be elsewhere."""
        current = ""
        for number, line in enumerate(lines, 1):
            if head := re.match(r"\s*\[+\s*([^\]]+?)\s*\]+", line):
                current = head[1].replace('"', "").replace(" ", "")
            elif current == table and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*=", line):
                return number
        return 1

    rows = []

    def walk(value, table, key):
        name = f"{table}.{key}" if table and key else table or key
        if isinstance(value, dict):
            for inner, item in value.items():
                walk(item, name, inner)
        elif isinstance(value, list) and not any(isinstance(item, (dict, list)) for item in value):
            rows.append((name, f"[{', '.join(map(str, value))}]", line_of(table, key)))
        else:
            shown = str(value).lower() if isinstance(value, bool) else str(value)
            rows.append((name, shown, line_of(table, key)))

    walk(root, "", "")
    return rows
