# SPDX-License-Identifier: Apache-2.0
"""Evaluates a bash script without running its programs, to find the command that it would start.

Variables, arrays, functions, conditions, case and loops over known words are evaluated. Whatever the script alone does
not determine (the output of a program, a file, an argument of the script) is an unknown text with a reason. A condition
on unknown text evaluates both branches: values that are equal after both are known, and all others are unknown, with
that line. An unknown text therefore matters only when an option needs it.
"""

import fnmatch
import re

from options import Refused
from shell_arithmetic import calculated
from shell_conditions import UNKNOWN, Condition
from shell_parser import ASSIGNMENT, Node, Parser

MOST_STEPS = 200_000
# Commands that succeed in any sensible start. The others may fail, so that "&&" after them is a condition.
SUCCEEDING = {
    "cd",
    "mkdir",
    "export",
    "module",
    "echo",
    "printf",
    "chmod",
    "cp",
    "mv",
    "rm",
    "touch",
    "date",
    "sleep",
    "set",
    "ulimit",
    "pushd",
    "popd",
    "source",
    ".",
    "unset",
    "shift",
    "true",
    ":",
    "eval",
    "local",
    "declare",
    "readonly",
    "typeset",
    "wait",
    "trap",
    "conda",
    "shopt",
    "cat",
    "tee",
}


class _Exit(Exception):
    pass


class _Return(Exception):
    pass


class _Loop(Exception):
    def __init__(self, continues):
        super().__init__()
        self.continues = continues


class Shell:
    """`commands` has the words of every command that holds `wanted`, a regular expression, with its line."""

    def __init__(self, text, path, wanted):
        self.path, self.wanted = path, wanted
        self.values, self.functions, self.arguments = {}, {}, None
        self.reasons = []  # of unknown texts: (kind, sentence)
        self.commands = []  # (line, words)
        self.defaults = {}  # names that only the environment sets, and the script's own default for them
        self.skipped = []  # (line, sentence): what was not evaluated
        self.steps = 0
        try:
            self.run(Parser(text, path).program())
        except _Exit:
            pass
        except RecursionError:
            self.refuse(1, "the script calls itself without end.")

    def refuse(self, line, message):
        raise Refused(f"{self.path}:{line}: {message}")

    # Unknown texts

    def unknown(self, kind, sentence):
        if (kind, sentence) not in self.reasons:
            self.reasons.append((kind, sentence))
        return f"\ue000{self.reasons.index((kind, sentence))}\ue001"

    def reason(self, text):
        """(kind, sentence) of the first unknown part, or None."""
        found = UNKNOWN.search(text)
        return self.reasons[int(found[1])] if found else None

    # Commands. Each returns True or False for its exit status, and None if it is not known.

    def run(self, nodes):
        status = True
        for node in nodes:
            status = self.execute(node)
        return status

    def execute(self, node):
        self.steps += 1
        if self.steps > MOST_STEPS:
            self.refuse(node.line, f"the script is still running after {MOST_STEPS} commands.")
        return getattr(self, "_" + node.kind)(node, *node.items)

    def branches(self, line, parts):
        """Runs each part from the same state. Keeps what is common to all parts that continue."""
        before, ran, ends = (dict(self.values), dict(self.functions)), len(self.commands), []
        left = None
        for part in parts:
            self.values = {name: list(v) if isinstance(v, list) else v for name, v in before[0].items()}
            self.functions = dict(before[1])
            try:
                part()
                ends.append(self.values)
            except (_Exit, _Return, _Loop) as end:
                left = end
            if len(self.commands) > ran:
                self.refuse(
                    self.commands[-1][0],
                    f"this command starts or not depending on the condition in line {line}, which the file does not "
                    f"decide. Import a file with only one of the cases.",
                )
        if not ends:
            raise left
        self.values = {}
        for name in dict.fromkeys(name for values in ends for name in values):
            found = [values.get(name) for values in ends]
            if all(value == found[0] for value in found):
                self.values[name] = found[0]
            else:
                text = self.unknown(
                    "condition", f"{name} depends on the condition in line {line}, which the file does not decide"
                )
                self.values[name] = [text] if any(isinstance(value, list) for value in found) else text
        return None

    def _and_or(self, node, first, rest):
        status = self.execute(first)
        for operator, right in rest:
            if status is None:
                self.branches(node.line, [lambda right=right: self.execute(right), lambda: None])
            elif status == (operator == "&&"):
                status = self.execute(right)
        return status

    def _pipe(self, node, nodes, negated):
        status = self.execute(nodes[0]) if len(nodes) == 1 else None
        for part in nodes if len(nodes) > 1 else ():
            status = self.execute(Node("subshell", part.line, ([part],)))
        return None if status is None else status != negated

    def _subshell(self, _, body):
        values = {name: list(v) if isinstance(v, list) else v for name, v in self.values.items()}
        try:
            return self.run(body)
        except (_Exit, _Return):
            return None
        finally:
            self.values = values

    def _group(self, _, body):
        return self.run(body)

    def _function(self, _, name, body):
        self.functions[name] = body
        return True

    def _if(self, node, branches, otherwise):
        if not branches:
            return self.run(otherwise)
        (condition, body), rest = branches[0], branches[1:]
        status = self.run(condition)
        if status is None:
            return self.branches(node.line, [lambda: self.run(body), lambda: self._if(node, rest, otherwise)])
        return self.run(body) if status else self._if(node, rest, otherwise)

    def _case(self, node, subject, branches):
        text = self.joined(subject)
        if self.reason(text):
            bodies = [lambda body=body: self.run(body) for _, body, _ in branches]
            return self.branches(node.line, [*bodies, lambda: None])
        taken = False
        for patterns, body, end in branches:
            taken = taken or any(fnmatch.fnmatchcase(text, self.pattern(pattern)) for pattern in patterns)
            if taken:
                status = self.run(body)
                if end == ";;":
                    return status
                taken = end == ";&"
        return True

    def _for(self, node, name, words, body):
        values = self.fields(words) if words is not None else [self.unknown("argument", "the script's arguments")]
        if any(self.reason(value) for value in values):
            return self.branches(node.line, [lambda: self.once(name, values[0], body), lambda: None])
        for value in values:
            try:
                self.once(name, value, body)
            except _Loop as loop:
                if not loop.continues:
                    break
        return True

    def once(self, name, value, body):
        self.values[name] = value
        return self.run(body)

    def _while(self, node, condition, body, until):
        while True:
            status = self.run(condition)
            if status is None:
                # This is a loop over the script's arguments, and there are none.
                if any(kind == "argument" for kind, _ in self.reasons[-1:]):
                    return True
                return self.branches(node.line, [lambda: self.run(body), lambda: None])
            if status == until:
                return True
            try:
                self.run(body)
            except _Loop as loop:
                if not loop.continues:
                    return True
            self.steps += 1

    def _arithmetic(self, node, text):
        value = self.calculate(text, node.line)
        return None if value is None else value != 0

    def _test(self, node, items):
        return Condition(self, [item if isinstance(item, str) else self.test_word(item) for item in items]).result()

    def test_word(self, word):
        literal = word.literal()
        return (
            ("operator", literal)
            if literal and re.fullmatch(r"-[a-zA-Z]+|=~|==?|!=?", literal)
            else ("word", self.joined(word), self.pattern(word))
        )

    def _simple(self, node, assignments, words):
        fields = self.fields(words)
        if not fields or fields[0] in ("export", "local", "declare", "readonly", "typeset"):
            for assignment in assignments:
                self.assign(assignment, node.line)
            for field in fields[1:]:  # such as export $NAMES
                found = ASSIGNMENT.match(field)
                if found:
                    self.values[found[1]] = field[found.end() :]
            return True
        return self.call(node.line, fields)

    def call(self, line, fields):
        name = fields[0]
        if name in self.functions:
            before, self.arguments = self.arguments, fields[1:]
            try:
                return self.execute(self.functions[name])
            except _Return:
                return None
            finally:
                self.arguments = before
        if name in ("exit", "return"):
            raise _Exit if name == "exit" else _Return
        if name in ("break", "continue"):
            raise _Loop(name == "continue")
        if name in ("test", "["):
            words = fields[1:-1] if name == "[" else fields[1:]
            return Condition(self, [("word", word, word) for word in words], old=True).result()
        if name in ("true", ":"):
            return True
        if name == "false":
            return False
        if name == "eval":
            return self.run(Parser(" ".join(fields[1:]), self.path, line).program())
        if name == "let":
            for text in fields[1:]:
                self.calculate(text, line)
            return True
        if name == "shift" and self.arguments:
            self.arguments = self.arguments[1:]
        if name in ("read", "mapfile", "readarray", "getopts"):
            for field in fields[1:]:
                if re.fullmatch(r"[A-Za-z_]\w*", field):
                    self.values[field] = self.unknown("command", f"{field} is read in line {line}")
        if name == "unset":
            for field in fields[1:]:
                self.values.pop(field, None)
        if name in ("source", ".") and len(fields) > 1:
            self.skipped.append((line, f"{self.shown(fields[1])} is another file, which the import does not read"))
        if name not in ("echo", "printf"):
            self.start(line, fields)
        return True if name in SUCCEEDING else None

    def start(self, line, fields):
        """Records a command that holds `wanted`, also inside a word, as in sh -c "..."."""
        for field in fields:
            if re.search(self.wanted, field):
                if re.search(r"\s", field.strip()):
                    self.run(Parser(field, self.path, line).program())
                else:
                    self.commands.append((line, fields))
                return

    def shown(self, text):
        return UNKNOWN.sub("?", text)

    # Words

    def assign(self, assignment, line):
        name, old = assignment.name, self.values.get(assignment.name)
        if isinstance(assignment.value, list):
            new = self.fields(assignment.value)
            if assignment.appends and old is not None:
                new = (old if isinstance(old, list) else [old]) + new
        else:
            new = self.joined(assignment.value)
            if assignment.index:
                key = self.calculate(assignment.index, line)
                values = list(old) if isinstance(old, list) else []
                if not isinstance(key, int) or not 0 <= key <= len(values):
                    self.refuse(line, f"{name}[{assignment.index}] is not the next element of an array.")
                values[key : key + 1] = [(values[key] if assignment.appends and key < len(values) else "") + new]
                new = values
            elif assignment.appends and old is not None:
                new = [old[0] + new, *old[1:]] if isinstance(old, list) and old else (old or "") + new
        self.values[name] = new

    def fields(self, words):
        """The words after expansion: unquoted expansions are split at spaces."""
        result = []
        for word in words:
            current, empty = None, False  # empty: quotes without text, which are a word unless an array vanishes
            for part in word.parts:
                if part.kind == "text":
                    if part.text or not part.quoted:
                        current = (current or "") + part.text
                    empty = empty or part.quoted
                    continue
                values, many = self.expand(part, word.line)
                if part.quoted:
                    pieces = values if many else [" ".join(values)]
                else:
                    text = " ".join(values)
                    pieces = text.split()
                    if text[:1].isspace() and current is not None:
                        result.append(current)
                        current = None
                if not pieces:
                    empty = empty and not (part.quoted and many)
                    continue
                result += [(current or "") + pieces[0], *pieces[1:]]
                current = result.pop()
                if not part.quoted and text[-1:].isspace():
                    result.append(current)
                    current = None
            if current is not None or empty:
                result.append(current or "")
        return result

    def joined(self, word):
        return "".join(
            part.text if part.kind == "text" else " ".join(self.expand(part, word.line)[0]) for part in word.parts
        )

    def pattern(self, word):
        """The word as a pattern, in which quoted text stands for itself."""
        if isinstance(word, str):
            return word
        texts = []
        for part in word.parts:
            text = part.text if part.kind == "text" else " ".join(self.expand(part, word.line)[0])
            texts.append(re.sub(r"([*?\[\]])", r"[\1]", text) if part.quoted else text)
        return "".join(texts)

    def expand(self, part, line):
        """(texts, is each a word of its own in quotes?)."""
        if part.kind == "command":
            text = " ".join(part.text.split())[:60]
            return [self.unknown("command", f"the output of '{text}' in line {line} is not known")], False
        if part.kind == "arithmetic":
            value = self.calculate(part.text, line)
            if value is None:
                return [
                    self.unknown("arithmetic", f"$(({part.text.strip()})) in line {line} has no known value")
                ], False
            return [str(value)], False
        return self.variable(part.text, line)

    def calculate(self, text, line):
        word = Parser(f'"{text}"', self.path, line).word()
        try:
            return calculated(self.joined(word), self.values)
        except ValueError:
            return None

    def value_of(self, name, line):
        """The texts of a name, or None if the script does not set it."""
        if name in ("@", "*"):
            if self.arguments is not None:
                return list(self.arguments)
            return [self.unknown("argument", "the script's arguments")]
        if name == "#" or name.isdigit():
            if self.arguments is not None and name != "0":
                if name == "#":
                    return [str(len(self.arguments))]
                return self.arguments[int(name) - 1 : int(name)] or None
            return [self.unknown("argument", "the script's arguments")] if name in "#0" else None
        if name in ("?", "$", "!", "-"):
            return [self.unknown("command", f"${name} in line {line} is not known")]
        value = self.values.get(name)
        return value if isinstance(value, list) or value is None else [value]

    def variable(self, text, line):
        found = re.fullmatch(r"(#|!)?([A-Za-z_]\w*|[0-9]+|[@*#?$!-])(?:\[([^\]]*)\])?(.*)", text, re.S)
        if not found:
            return [self.unknown("command", f"${{{text}}} in line {line} is not known")], False
        sign, name, index, rest = found.groups()
        if sign == "!" and not index:
            pointer = self.value_of(name, line)
            name = pointer[0] if pointer and re.fullmatch(r"\w+", pointer[0]) else name
        values, many = self.value_of(name, line), index == "@" or name == "@"
        if values is not None and index not in (None, "@", "*"):
            key = self.calculate(index, line)
            values = [values[key]] if isinstance(key, int) and -len(values) <= key < len(values) else None
        elif values is not None and index is None and name not in "@*":
            values = values[:1]
        if sign == "#":
            if values is None or any(map(self.reason, values)):
                return [self.unknown("unset", f"${{{text}}} in line {line} is not known")], False
            return [str(len(values) if index in ("@", "*") else len(values[0]) if values else 0)], False
        return self.substituted(text, name, values, rest, line), many

    def substituted(self, text, name, values, rest, line):
        operator = re.match(r":?[-=+?]|##?|%%?|//?|\^\^?|,,?|:", rest)
        missing = values is None or (rest.startswith(":") and values in ([], [""]))
        if operator and operator.group()[-1] in "-=+?" and operator.group() != ":":
            other = self.joined(Parser(f'"{rest[operator.end() :]}"', self.path, line).word())
            kind = operator.group()[-1]
            if kind == "+":
                return [] if missing else [other]
            if not missing:
                return values
            if kind == "?":
                return [self.unknown("unset", f"{name} is not set in the file")]
            if values is None:
                self.defaults[name] = other
            if kind == "=":
                self.values[name] = other
            return [other]
        if values is None:
            if name.isdigit():
                return [self.unknown("argument", f"argument ${name} of the script is not known")]
            return [self.unknown("unset", f"{name} is not set in the file")]
        if not rest:
            return values
        return [self.edited(value, operator.group() if operator else "", rest, line) for value in values]

    def edited(self, value, operator, rest, line):
        """${NAME#pattern} and the like."""
        argument = self.joined(Parser(f'"{rest[len(operator) :]}"', self.path, line).word())
        if self.reason(value) or self.reason(argument):
            return value if self.reason(value) else argument
        lengths = range(len(value) + 1)
        if operator in ("#", "##"):
            fitting = [n for n in lengths if fnmatch.fnmatchcase(value[:n], argument)]
            return value[max(fitting) if operator == "##" else min(fitting) :] if fitting else value
        if operator in ("%", "%%"):
            fitting = [n for n in lengths if fnmatch.fnmatchcase(value[n:], argument)]
            return value[: min(fitting) if operator == "%%" else max(fitting)] if fitting else value
        if operator in ("/", "//"):
            old, _, new = argument.partition("/")
            pattern = fnmatch.translate(old).removeprefix("(?s:").removesuffix(")\\Z")
            return re.sub(pattern, lambda _: new, value, count=0 if operator == "//" else 1, flags=re.S)
        if operator in ("^", "^^", ",", ",,"):
            change = str.upper if operator[0] == "^" else str.lower
            return change(value) if len(operator) == 2 else change(value[:1]) + value[1:]
        if operator == ":":
            begin, _, length = argument.partition(":")
            first, count = self.calculate(begin, line), self.calculate(length, line) if length else len(value)
            if isinstance(first, int) and isinstance(count, int):
                return value[first:][:count] if count >= 0 else value[first:count]
        return self.unknown("command", f"'{rest}' in line {line} is not evaluated")
