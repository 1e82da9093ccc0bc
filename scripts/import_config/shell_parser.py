# SPDX-License-Identifier: Apache-2.0
"""Reads bash into a tree of commands. Words keep their quotes and expansions; nothing is evaluated here."""

import dataclasses
import re

from options import Refused

NAME = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")
ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z_0-9]*)(\[[^\]]*\])?(\+?)=")
RESERVED_ENDS = {"then", "elif", "else", "fi", "do", "done", "esac", "}"}
REDIRECTION = re.compile(r"[0-9]*(&>>|&>|>>|>\||>&|<&|<>|<<<|<<-|<<|>|<)")


@dataclasses.dataclass
class Part:
    """A piece of a word. kind: text, variable (its text is the content of ${...}), arithmetic or command."""

    kind: str
    text: str
    quoted: bool


@dataclasses.dataclass
class Word:
    parts: list
    line: int

    def literal(self):
        """The text of a word without quotes and expansions, or else None."""
        if any(part.quoted or part.kind != "text" for part in self.parts):
            return None
        return "".join(part.text for part in self.parts)


@dataclasses.dataclass
class Assignment:
    name: str
    index: str
    appends: bool
    value: object  # a Word, or a list of Words


@dataclasses.dataclass
class Node:
    kind: str
    line: int
    items: tuple = ()


class Parser:
    def __init__(self, text, path, first_line=1):
        self.text, self.path, self.first_line, self.at = text, path, first_line, 0
        self.documents = []  # here-documents whose text begins on the next line

    def refuse(self, message, at=None):
        raise Refused(f"{self.path}:{self.line(at)}: {message}")

    def unexpected(self):
        found = self.text[self.at : self.at + 1]
        self.refuse(f"{repr(found) if found.strip() else 'the end of the line'} is not expected here.")

    def line(self, at=None):
        return self.first_line + self.text.count("\n", 0, self.at if at is None else at)

    def peek(self, *texts):
        return next((text for text in texts if self.text.startswith(text, self.at)), None)

    def blanks(self):
        """Skips spaces, continued lines and a comment."""
        while self.at < len(self.text):
            if self.text[self.at] in " \t\r":
                self.at += 1
            elif self.peek("\\\n"):
                self.at += 2
            elif self.peek("\\\r\n"):
                self.at += 3
            elif self.text[self.at] == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            else:
                return

    def newlines(self):
        self.blanks()
        while self.at < len(self.text) and self.text[self.at] in "\n;":
            if self.peek(";;", ";&"):
                return
            if self.text[self.at] == "\n":
                self.at += 1
                self.here_documents()
            else:
                self.at += 1
            self.blanks()

    def here_documents(self):
        """Skips the texts of the line's here-documents, which are the input of a command, and no commands."""
        for end_word, strips in self.documents:
            while self.at < len(self.text):
                end = self.text.find("\n", self.at)
                end = len(self.text) if end < 0 else end
                line, self.at = self.text[self.at : end].rstrip("\r"), end + 1
                if (line.lstrip("\t") if strips else line) == end_word:
                    break
        self.documents = []

    def reserved(self):
        """The reserved word here, if there is one."""
        found = re.compile(
            r"(?:if|then|elif|else|fi|case|esac|for|select|while|until|do|done|function|\{|\}|\[\[|!)"
            r"(?=[\s;&|()]|$)"
        ).match(self.text, self.at)
        return found.group() if found else None

    def expect(self, text):
        self.newlines()
        if not self.peek(text):
            found = self.text[self.at : self.at + 20].split("\n")[0] or "the end of the file"
            self.refuse(f"expected '{text}' before '{found}'.")
        self.at += len(text)

    def program(self):
        nodes = self.commands()
        if self.at < len(self.text):
            self.refuse(f"'{self.text[self.at]}' has no beginning.")
        return nodes

    def commands(self):
        nodes = []
        while True:
            self.newlines()
            if self.at >= len(self.text) or self.peek(")", ";;", ";&") or self.reserved() in RESERVED_ENDS:
                return nodes
            nodes.append(self.and_or())
            self.blanks()
            if self.peek("&") and not self.peek("&&"):
                self.at += 1

    def and_or(self):
        line, first, rest = self.line(), self.pipeline(), []
        while True:
            self.blanks()
            operator = self.peek("&&", "||")
            if not operator:
                return Node("and_or", line, (first, rest)) if rest else first
            self.at += 2
            self.newlines()
            rest.append((operator, self.pipeline()))

    def pipeline(self):
        self.blanks()
        line, negated = self.line(), False
        while self.reserved() == "!":
            negated, self.at = not negated, self.at + 1
            self.blanks()
        nodes = [self.command()]
        self.blanks()
        while self.peek("|") and not self.peek("||"):
            self.at += 2 if self.peek("|&") else 1
            self.newlines()
            nodes.append(self.command())
            self.blanks()
        return Node("pipe", line, (nodes, negated)) if negated or len(nodes) > 1 else nodes[0]

    def command(self):
        self.blanks()
        line, word = self.line(), self.reserved()
        if self.peek("(("):
            end = self.text.find("))", self.at)
            if end < 0:
                self.refuse("'((' has no end.")
            text, self.at = self.text[self.at + 2 : end], end + 2
            node = Node("arithmetic", line, (text,))
        elif self.peek("("):
            self.at += 1
            body = self.commands()
            self.expect(")")
            node = Node("subshell", line, (body,))
        elif word == "{":
            self.at += 1
            node = Node("group", line, (self.commands(),))
            self.expect("}")
        elif word == "if":
            self.at += 2
            node = self.if_rest(line)
        elif word == "case":
            self.at += 4
            node = self.case_rest(line)
        elif word in ("for", "select"):
            self.at += len(word)
            node = self.for_rest(line)
        elif word in ("while", "until"):
            self.at += len(word)
            condition = self.commands()
            self.expect("do")
            body = self.commands()
            self.expect("done")
            node = Node("while", line, (condition, body, word == "until"))
        elif word == "[[":
            self.at += 2
            node = self.test_rest(line)
        elif word == "function":
            self.at += len(word)
            self.blanks()
            name = self.word().literal()
            self.blanks()
            if self.peek("("):
                self.expect("(")
                self.expect(")")
            self.newlines()
            return Node("function", line, (name, self.command()))
        else:
            return self.simple(line)
        while self.redirection():
            pass
        return node

    def if_rest(self, line):
        branches, otherwise = [], []
        condition = self.commands()
        self.expect("then")
        branches.append((condition, self.commands()))
        while True:
            self.newlines()
            word = self.reserved()
            if word == "elif":
                self.at += 4
                condition = self.commands()
                self.expect("then")
                branches.append((condition, self.commands()))
            elif word == "else":
                self.at += 4
                otherwise = self.commands()
            else:
                self.expect("fi")
                return Node("if", line, (branches, otherwise))

    def case_rest(self, line):
        self.blanks()
        subject, branches = self.word(), []
        self.expect("in")
        while True:
            self.newlines()
            if self.reserved() == "esac":
                self.at += 4
                return Node("case", line, (subject, branches))
            if self.peek("("):
                self.at += 1
            patterns = []
            while True:
                self.blanks()
                patterns.append(self.word())
                self.blanks()
                if not self.peek("|"):
                    break
                self.at += 1
            self.expect(")")
            body = self.commands()
            self.newlines()
            end = self.peek(";;&", ";;", ";&")
            self.at += len(end or "")
            branches.append((patterns, body, end or ";;"))

    def for_rest(self, line):
        self.blanks()
        if self.peek("(("):
            self.refuse("'for ((' is not supported: write the values, as in 'for x in 1 2'.")
        name, words = self.word().literal(), None
        self.newlines()
        if re.compile(r"in(?=\s)").match(self.text, self.at):
            self.at += 2
            words = []
            self.blanks()
            while self.at < len(self.text) and self.text[self.at] not in "\n;":
                words.append(self.word())
                self.blanks()
        self.expect("do")
        body = self.commands()
        self.expect("done")
        return Node("for", line, (name, words, body))

    def test_rest(self, line):
        """[[ ... ]]: words and the operators between them."""
        items = []
        while True:
            self.blanks()
            if self.at >= len(self.text):
                self.refuse("'[[' has no end.")
            if self.text[self.at] == "\n":
                self.at += 1
                continue
            operator = self.peek("]]", "&&", "||", "(", ")", "<", ">")
            if operator == "]]":
                self.at += 2
                return Node("test", line, (items,))
            if operator:
                self.at += len(operator)
                items.append(operator)
            else:
                expression = items and isinstance(items[-1], Word) and items[-1].literal() == "=~"
                items.append(self.word(pattern=bool(expression)))

    def simple(self, line):
        assignments, words, redirected = [], [], False
        while True:
            if self.redirection():
                redirected = True
                continue
            if self.at >= len(self.text) or self.text[self.at] in "\n;&|)":
                break
            if self.text[self.at] == "(":
                if len(words) == 1 and words[0].literal():
                    self.at += 1
                    self.expect(")")
                    self.newlines()
                    return Node("function", line, (words[0].literal(), self.command()))
                self.refuse("'(' is not expected here.")
            declares = words and words[0].literal() in ("export", "local", "declare", "readonly", "typeset")
            found = ASSIGNMENT.match(self.text, self.at) if not words or declares else None
            if found:
                self.at = found.end()
                assignments.append(Assignment(found[1], (found[2] or "")[1:-1], bool(found[3]), self.value()))
            else:
                words.append(self.word())
        if not assignments and not words and not redirected:
            self.unexpected()
        return Node("simple", line, (assignments, words))

    def redirection(self):
        self.blanks()
        found = REDIRECTION.match(self.text, self.at)
        if not found or self.text.startswith(("<(", ">("), found.start(1)):
            return False
        self.at = found.end()
        self.blanks()
        target = self.word()
        if found[1] in ("<<", "<<-"):
            self.documents.append(("".join(part.text for part in target.parts), found[1] == "<<-"))
        return True

    def value(self):
        """The right side of an assignment."""
        if not self.peek("("):
            return self.word(empty=True)
        self.at += 1
        words = []
        while True:
            self.newlines()
            if self.at >= len(self.text):
                self.refuse("'(' of an array has no end.")
            if self.peek(")"):
                self.at += 1
                return words
            words.append(self.word())

    def word(self, empty=False, pattern=False):
        """One word. `pattern`: a regular expression of [[, which may hold parentheses and bars."""
        start, parts = self.at, []
        depth = 0
        while self.at < len(self.text):
            char = self.text[self.at]
            if pattern and char in "(|)<>":
                depth += (char == "(") - (char == ")")
                if depth < 0:
                    break
                parts.append(Part("text", char, False))
                self.at += 1
            elif char in " \t\r\n;&|<>()":
                if self.text.startswith(("<(", ">("), self.at):
                    self.at += 1
                    parts.append(Part("command", self.enclosed("(", ")"), False))
                    continue
                break
            elif char == "\\":
                if not self.peek("\\\n"):
                    parts.append(Part("text", self.text[self.at + 1 : self.at + 2], True))
                self.at += 2
            elif char == "'":
                end = self.text.find("'", self.at + 1)
                if end < 0:
                    self.refuse("a quote ' has no end.")
                parts.append(Part("text", self.text[self.at + 1 : end], True))
                self.at = end + 1
            elif char == '"':
                self.at += 1
                self.quoted(parts)
            elif self.peek("$'"):
                self.at += 2
                self.escaped(parts)
            elif self.peek('$"'):
                self.at += 1
            elif char in "$`":
                parts.append(self.expansion(False))
            else:
                parts.append(Part("text", char, False))
                self.at += 1
        if self.at == start and not empty:
            self.unexpected()
        return Word(parts, self.line(start))

    def escaped(self, parts):
        """The text of $'...', with its escapes evaluated."""
        begin, text = self.at, ""
        while self.at < len(self.text):
            char = self.text[self.at]
            self.at += 1
            if char == "'":
                parts.append(Part("text", text, True))
                return
            if char == "\\" and self.at < len(self.text):
                char = self.text[self.at]
                self.at += 1
                char = {"n": "\n", "t": "\t", "r": "\r", "'": "'", '"': '"', "\\": "\\"}.get(char, "\\" + char)
            text += char
        self.refuse("a quote $' has no end.", begin)

    def quoted(self, parts):
        """The text up to the closing double quote."""
        begin = self.at
        parts.append(Part("text", "", True))
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == '"':
                self.at += 1
                return
            if char == "\\" and self.text[self.at + 1 : self.at + 2] in '"\\$`\n':
                if not self.peek("\\\n"):
                    parts.append(Part("text", self.text[self.at + 1], True))
                self.at += 2
            elif char in "$`":
                parts.append(self.expansion(True))
            else:
                parts.append(Part("text", char, True))
                self.at += 1
        self.refuse('a quote " has no end.', begin)

    def expansion(self, quoted):
        """$NAME, ${...}, $((...)), $(...), `...`; a lone dollar is text."""
        if self.text[self.at] == "`":
            end = self.text.find("`", self.at + 1)
            if end < 0:
                self.refuse("a quote ` has no end.")
            text, self.at = self.text[self.at + 1 : end], end + 1
            return Part("command", text, quoted)
        self.at += 1
        if self.peek("(("):
            text = self.enclosed("(", ")")
            if text.endswith(")"):
                return Part("arithmetic", text[1:-1], quoted)
            return Part("command", text, quoted)
        if self.peek("("):
            return Part("command", self.enclosed("(", ")"), quoted)
        if self.peek("{"):
            return Part("variable", self.enclosed("{", "}"), quoted)
        found = re.compile(r"[A-Za-z_][A-Za-z_0-9]*|[0-9@*#?$!-]").match(self.text, self.at)
        if not found:
            return Part("text", "$", quoted)
        self.at = found.end()
        return Part("variable", found.group(), quoted)

    def enclosed(self, opening, closing):
        """The text between the bracket here and its closing one, without them."""
        begin, depth, quote = self.at, 0, ""
        while self.at < len(self.text):
            char = self.text[self.at]
            self.at += 1
            if char == "\\":
                self.at += 1
            elif quote:
                quote = "" if char == quote else quote
            elif char in "'\"":
                quote = char
            elif char == opening:
                depth += 1
            elif char == closing:
                depth -= 1
                if depth == 0:
                    return self.text[begin + 1 : self.at - 1]
        self.refuse(f"'{opening}' has no end.", begin)
