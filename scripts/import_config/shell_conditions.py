# SPDX-License-Identifier: Apache-2.0
"""The conditions of test, [ and [[: True, False, or None where a text is unknown."""

import fnmatch
import re

from shell_arithmetic import calculated

UNKNOWN = re.compile("\ue000([0-9]+)\ue001")  # a text that the script alone does not determine, by the number of its reason


class Condition:
    """test, [ and [[. `items`: ("word", text, pattern), ("operator", text) and the operators of [[."""

    def __init__(self, shell, items, old=False):
        self.shell, self.at, self.old = shell, 0, old
        self.items = []
        for item in items:
            text = item if isinstance(item, str) else item[1]
            self.items.append((text, item[2] if len(item) > 2 and not isinstance(item, str) else text))

    def text(self, ahead=0):
        return self.items[self.at + ahead][0] if self.at + ahead < len(self.items) else None

    def result(self):
        return self.any_of() if self.items else False

    def any_of(self):
        status = self.all_of()
        while self.text() in ("||", "-o"):
            self.at += 1
            other = self.all_of()
            status = True if True in (status, other) else None if None in (status, other) else False
        return status

    def all_of(self):
        status = self.one()
        while self.text() in ("&&", "-a"):
            self.at += 1
            other = self.one()
            status = False if False in (status, other) else None if None in (status, other) else True
        return status

    def one(self):
        if self.text() == "!" and self.text(1) is not None:
            self.at += 1
            status = self.one()
            return None if status is None else not status
        if self.text() in ("(", "\\("):
            self.at += 1
            status = self.any_of()
            self.at += 1
            return status
        if self.text(1) in ("=", "==", "!=", "=~", "<", ">", "-eq", "-ne", "-lt", "-le", "-gt", "-ge", "-nt", "-ot"):
            left, operator, (right, pattern) = (
                self.text(),
                self.text(1),
                self.items[min(self.at + 2, len(self.items) - 1)],
            )
            self.at += 3
            return self.compared(left, operator, right, pattern)
        if re.fullmatch(r"-[a-zA-Z]", self.text() or "") and self.text(1) not in (None, "&&", "||", "-a", "-o", ")"):
            operator, value = self.text(), self.text(1)
            self.at += 2
            return self.about(operator, value)
        value = self.text()
        self.at += 1
        return self.about("-n", value or "")

    def about(self, operator, value):
        reason = self.shell.reason(value)
        if operator in ("-z", "-n"):
            empty = value == ""
            if reason:
                if reason[0] != "unset" or not UNKNOWN.fullmatch(value):
                    # With other text around it, it is not empty, whatever its value is.
                    if not UNKNOWN.sub("", value):
                        return None
                    return operator == "-n"
                # The environment may set it. Without it, the script takes its own default.
                self.shell.defaults.setdefault(reason[1].split()[0], "")
                empty = True
            return empty == (operator == "-z")
        if operator == "-v" and not reason:
            return value in self.shell.values
        return None  # files and the like

    def compared(self, left, operator, right, pattern):
        if self.shell.reason(left) or self.shell.reason(right):
            return None
        if operator in ("=", "=="):
            return left == right if self.old else fnmatch.fnmatchcase(left, pattern)
        if operator == "!=":
            return left != right if self.old else not fnmatch.fnmatchcase(left, pattern)
        if operator == "=~":
            try:
                return re.search(right, left) is not None
            except re.error:
                return None
        if operator in ("<", ">"):
            return left < right if operator == "<" else left > right
        try:
            a, b = calculated(left, self.shell.values), calculated(right, self.shell.values)
        except ValueError:
            return None
        return {"-eq": a == b, "-ne": a != b, "-lt": a < b, "-le": a <= b, "-gt": a > b, "-ge": a >= b}.get(operator)
