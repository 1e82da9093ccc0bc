# SPDX-License-Identifier: Apache-2.0
"""The options of another program's file, each with its place, and a record of how the import uses them."""

import dataclasses
import math
import re


class Refused(Exception):
    """The configuration cannot be imported. The text names the option, its place and the reason."""

    code = 2


class Missing(Refused):
    """This machine lacks a part of Python."""

    code = 7


@dataclasses.dataclass
class Option:
    name: str
    value: str  # "" for a flag without a value
    where: str  # "FILE:12"


NO_VALUE = {"null", "~"}  # as YAML writes them
TRUE = {"", "true", "yes", "1", "on"}
OFF = {"false", "no", "0", "0.0", "none", "null", "off", "~", "[]", "{}"}


class Options:
    """Look-ups. A name that the file lacks has the default of its own program, from `defaults`."""

    def __init__(self, options, defaults, prefix="", reason=lambda value: None):
        self.options = {option.name: option for option in options}  # later ones replace earlier ones
        self.defaults, self.prefix, self.reason = defaults, prefix, reason
        self.used, self.defaulted, self.unused, self.notes = {}, {}, {}, []

    def shown(self, value):
        """A value without the marks of unknown texts."""
        return re.sub("\ue000[0-9]+\ue001", "?", value)

    def find(self, name):
        """The option, or None if the file lacks it or if its value is null."""
        option = self.options.get(name)
        if option is None or option.value.lower() in NO_VALUE:
            return None
        self.used[name] = option
        return option

    def read(self, name):
        """The text of an option whose value has to be known, or the default."""
        option = self.find(name)
        if option is None:
            value = self.defaults[name]
            if value is not None:
                self.defaulted[name] = value
            return value
        if why := self.reason(option.value):
            raise Refused(f"{option.where}: {self.prefix}{name} has no known value: {why}. Write the number there.")
        return option.value

    def real(self, name):
        value = self.read(name)
        if isinstance(value, str):
            try:
                value = float(value)
            except ValueError:
                self.refuse(name, "needs a number")
            if not math.isfinite(value):
                self.refuse(name, "needs a finite number")
        return value

    def integer(self, name, least=None):
        value = self.real(name)
        if value is None:
            return None
        if value != math.floor(value) or abs(value) > 2**53:
            self.refuse(name, "needs a whole number")
        if least is not None and value < least:
            self.refuse(name, f"must be at least {least}")
        return int(value)

    def needed(self, name):
        """A size for which the program has no default."""
        value = self.integer(name, 1)
        if value is None:
            raise Refused(f"the file sets no {self.prefix}{name}, which has no default. Add it.")
        return value

    def flag(self, name):
        value = self.read(name)
        if not isinstance(value, str):
            return bool(value)
        if value.lower() in TRUE:
            return True
        if value.lower() not in OFF:
            self.refuse(name, "needs true or false")
        return False

    def choice(self, name, values):
        """One of `values`, whatever its case."""
        value = self.read(name)
        if value is None or value.lower() in values:
            return value and value.lower()
        self.refuse(name, f"is not supported: {', '.join(values)} {'is' if len(values) == 1 else 'are'}")

    def refuse(self, name, problem):
        option = self.options.get(name)
        if option is None:
            raise Refused(f"{self.prefix}{name} is missing: it {problem}.")
        value = f" = {option.value[:60]}" if option.value else ""
        raise Refused(f"{option.where}: {self.prefix}{name}{value} {problem}.")

    def refuse_if_on(self, name, problem="is not supported", neutral=()):
        """Refuses an option that the file sets to a value that changes something."""
        option = self.find(name)
        if option and option.value.lower() not in OFF and option.value not in neutral:
            self.refuse(name, problem)

    def leave(self, name, reason):
        """Records an option whose meaning the forecast ignores."""
        option = self.find(name)
        if option and option.value.lower() not in OFF:
            self.unused[name] = (option, reason, False)

    def ignore(self, beginning, reason):
        """Records options that have no effect beside the others of the file."""
        for name, option in self.options.items():
            if name.startswith(beginning) and name not in self.used:
                self.unused[name] = (option, reason, True)

    def require_known(self, neutral):
        """Refuses the first option that was not looked up and is not neutral. A neutral option changes the time of no
        step."""
        for name, option in self.options.items():
            if name in self.used or name in self.unused:
                continue
            if neutral(name):
                self.unused[name] = (option, "it does not change the time of a step", True)
            elif option.value.lower() in OFF:
                self.unused[name] = (option, "it is off", True)
            else:
                raise Refused(
                    f"{option.where}: {self.prefix}{name[:80]} is not supported: this version does not know whether it "
                    f"changes a step."
                )
