# SPDX-License-Identifier: Apache-2.0
"""bash's arithmetic of whole numbers."""

import re

TOKEN = re.compile(
    r"\s*(0[xX][0-9a-fA-F]+|[0-9]+|[A-Za-z_]\w*|\*\*|<<|>>|<=|>=|==|!=|&&|\|\||\+\+|--|[-+*/%]=|[-+*/%()<>!?:=&|^~,])"
)
LEVELS = [
    ("||",),
    ("&&",),
    ("|",),
    ("^",),
    ("&",),
    ("==", "!="),
    ("<", ">", "<=", ">="),
    ("<<", ">>"),
    ("+", "-"),
    ("*", "/", "%"),
]
MOST = 1 << 63


def quotient(a, b):
    if b == 0:
        raise ValueError("division by zero")
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


OPERATIONS = {
    "||": lambda a, b: int(bool(a or b)),
    "&&": lambda a, b: int(bool(a and b)),
    "|": lambda a, b: a | b,
    "^": lambda a, b: a ^ b,
    "&": lambda a, b: a & b,
    "==": lambda a, b: int(a == b),
    "!=": lambda a, b: int(a != b),
    "<": lambda a, b: int(a < b),
    ">": lambda a, b: int(a > b),
    "<=": lambda a, b: int(a <= b),
    ">=": lambda a, b: int(a >= b),
    "<<": lambda a, b: a << min(b, 63),
    ">>": lambda a, b: a >> min(b, 63),
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": quotient,
    "%": lambda a, b: a - b * quotient(a, b),
}


class _Expression:
    def __init__(self, text, values, depth):
        self.tokens, self.values, self.depth, at = [], values, depth, 0
        text = text.rstrip()
        while at < len(text):
            found = TOKEN.match(text, at)
            if not found:
                raise ValueError(text)
            self.tokens.append(found[1])
            at = found.end()
        self.at = 0

    def next(self):
        return self.tokens[self.at] if self.at < len(self.tokens) else None

    def take(self, *tokens):
        if self.next() in tokens:
            self.at += 1
            return self.tokens[self.at - 1]
        return None

    def assignment(self):
        name = self.next()
        after = self.tokens[self.at + 1] if self.at + 1 < len(self.tokens) else None
        if name and re.match(r"[A-Za-z_]", name) and after in ("=", "+=", "-=", "*=", "/=", "%="):
            self.at += 2
            value = self.assignment()
            if after != "=":
                value = OPERATIONS[after[0]](self.of_name(name), value)
            self.values[name] = str(value)
            return value
        value = self.level(0)
        if self.take("?"):
            yes = self.assignment()
            if not self.take(":"):
                raise ValueError("'?' without ':'")
            no = self.assignment()
            return yes if value else no
        return value

    def level(self, index):
        if index == len(LEVELS):
            return self.power()
        value = self.level(index + 1)
        while operator := self.take(*LEVELS[index]):
            value = OPERATIONS[operator](value, self.level(index + 1))
            if abs(value) >= MOST:
                raise ValueError("beyond 64 bits")
        return value

    def power(self):
        value = self.unary()
        if self.take("**"):
            exponent = self.power()
            if not 0 <= exponent < 64:
                raise ValueError("an exponent beyond 63")
            value = value**exponent
        return value

    def unary(self):
        sign = self.take("-", "+", "!", "~")
        if sign:
            value = self.unary()
            return {"-": -value, "+": value, "!": int(not value), "~": ~value}[sign]
        if self.take("("):
            value = self.assignment()
            if not self.take(")"):
                raise ValueError("'(' without ')'")
            return value
        token = self.next()
        if token is None:
            raise ValueError("an operand is missing")
        self.at += 1
        if token[0].isdigit():
            return int(token, 16) if token[:2] in ("0x", "0X") else int(token, 8 if token[0] == "0" else 10)
        if not re.match(r"[A-Za-z_]", token):
            raise ValueError(token)
        value = self.of_name(token)
        change = self.take("++", "--")
        if change:
            self.values[token] = str(value + (1 if change == "++" else -1))
        return value

    def of_name(self, name):
        text = self.values.get(name)
        if text is None or isinstance(text, list):
            raise ValueError(name)
        return calculated(text, self.values, self.depth + 1)


def calculated(text, values, depth=0):
    """The value of `text`, whose names are of `values`. Assignments change `values`. Raises ValueError."""
    if depth > 20:
        raise ValueError("names that mean each other")
    if not text.strip():
        return 0
    expression = _Expression(text, values, depth)
    value = expression.assignment()
    while expression.take(","):
        value = expression.assignment()
    if expression.next() is not None:
        raise ValueError(text)
    return value
