"""Command lines as engines split them: options with their values, and where each word stands.

An engine's options are a text of names with a mark for the values they take (`options_of`). Four dialects split the words: Python's
argparse (unique prefixes, `-tp 2`, `--flag=value`), click, clap, and llama.cpp's own (exact names, no `=`). Nothing is refused:
what the engine would refuse becomes a Problem.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from kvcli.check.launch import Problem
from kvcli.check.nodes import Place, Word, place_at

Arity = Literal["one", "none", "maybe", "many", "bool"]
_MARKS: dict[str, Arity] = {"!": "none", "?": "maybe", "+": "many", "~": "bool"}
_NEGATIVE_NUMBER = re.compile(r"-(?:\d+|\d*\.\d+)")


class Option(NamedTuple):
    """`name` is the one the readers use. `negated`: names that switch it off."""

    name: str
    arity: Arity
    negated: frozenset[str] = frozenset()


class Dialect(NamedTuple):
    """`dashes`: underscores in long names are dashes. `repeats`: whether a second time is allowed (the last wins)."""

    prefixes: bool = False
    equals: bool = True
    dashes: bool = False
    repeats: bool = True
    #: argparse takes no value that looks like an option; the others take the next word whatever it is
    strict_values: bool = False


ARGPARSE = Dialect(prefixes=True, strict_values=True)
FLEXIBLE = ARGPARSE._replace(dashes=True)
CLICK = Dialect(dashes=True)
CLAP = Dialect(repeats=False)
LLAMA = Dialect(equals=False, dashes=True)


#: How alike an unknown option and a known one are where it is a slip and not a newer option: a letter or two of them.
ALIKE = 0.93


class Given(NamedTuple):
    """An option as it was given. `word`: where its name stands; `values`: none for a switch; `off`: by a name that negates."""

    option: str
    word: Word
    values: tuple[Word, ...] = ()
    off: bool = False

    @property
    def place(self) -> Place:
        """The value's place, else the option's: what an annotation points at."""
        return self.values[0].place if self.values else self.word.place

    @property
    def said(self) -> str:
        name = self.word.text.partition("=")[0]
        return " ".join(" ".join([name, *(value.text for value in self.values)]).split())[:120]


class Parsed(NamedTuple):
    """`given`: in order, each option once, as the last time it was given. `rest`: words that belong to no option."""

    given: tuple[Given, ...]
    rest: tuple[Word, ...]
    problems: tuple[Problem, ...]


def options_of(*texts: str) -> dict[str, Option]:
    """`--name,-n` takes a value, `--name!` none, `--name?` perhaps one, `--name+` several, `--name~` none and has a `--no-name`.

    A name with `^` before it switches the option off. The option is known by its first name.
    """
    found: dict[str, Option] = {}
    for token in (token for text in texts for token in text.split()):
        arity = _MARKS.get(token[-1], "one")
        names = token.rstrip("!?+~").split(",")
        negated = [name[1:] for name in names if name[0] == "^"]
        if arity == "bool":
            negated += ["--no-" + name[2:] for name in names if name.startswith("--")]
        names = [name for name in names if name[0] != "^"]
        option = Option(names[0], arity, frozenset(negated))
        found |= dict.fromkeys([*names, *negated], option)
    return found


def parse(words: Sequence[Word], options: dict[str, Option], dialect: Dialect) -> Parsed:
    """Splits the words of a command line, program left out."""
    return _Parser(words, options, dialect).parsed()


class _Parser:
    def __init__(self, words: Sequence[Word], options: dict[str, Option], dialect: Dialect) -> None:
        self.words, self.options, self.dialect = tuple(words), options, dialect
        self.given: dict[str, Given] = {}
        self.rest: list[Word] = []
        self.problems: list[Problem] = []
        self.at = 0

    def parsed(self) -> Parsed:
        while self.at < len(self.words):
            word = self.words[self.at]
            self.at += 1
            if word.text == "--" and self.dialect.strict_values:
                self.rest += self.words[self.at :]
                break
            if self._is_option(word.text):
                self._option(word)
            elif pieces := self._in_one(word):
                self.words = (*self.words[: self.at], *pieces, *self.words[self.at :])
            else:
                self.rest.append(word)
        return Parsed(tuple(self.given.values()), tuple(self.rest), tuple(self.problems))

    def _in_one(self, word: Word) -> tuple[Word, ...]:
        """What an option and its value are that stand in one word, `"--max-model-len 8192"`: no engine reads them as they are meant."""
        pieces = word.text.split()
        if not word.text.startswith("-") or len(pieces) < 2 or self._spelled(pieces[0].partition("=")[0]) not in self.options:
            return ()
        text = f"{word.text[:60]!r} is one word, in which the engine finds no {pieces[0][:40]}: make two words of it"
        self._problem("bad_argument", text, word)
        return tuple(Word(piece, word.place, word.literal) for piece in pieces)

    def _is_option(self, text: str) -> bool:
        """Whether argparse and its kin read the word as an option's name, known or not."""
        if not text.startswith("-") or text == "-":
            return False
        if self._names(text):
            return True
        return not _NEGATIVE_NUMBER.fullmatch(text) and " " not in text

    def _split(self, text: str) -> tuple[str, str | None]:
        if text in self.options or not self.dialect.equals or "=" not in text:
            return self._spelled(text), None
        name, _, value = text.partition("=")
        return self._spelled(name), value

    def _spelled(self, name: str) -> str:
        return name.replace("_", "-") if self.dialect.dashes and name.startswith("--") else name

    def _names(self, text: str) -> list[tuple[str, str | None]]:
        """(name, value behind `=` or glued to a short name) of the options that the word may mean."""
        name, value = self._split(text)
        if name in self.options:
            return [(name, value)]
        if not self.dialect.prefixes:
            return []
        if name.startswith("--"):
            return [(known, value) for known in self.options if known.startswith(name)]
        found: list[tuple[str, str | None]] = [(known, None) for known in self.options if known.startswith(text)]
        return found + ([(text[:2], text[2:])] if text[:2] in self.options and len(text) > 2 else [])

    def _option(self, word: Word) -> None:
        found = self._names(word.text)
        if not found:
            self._unknown(word)
            return
        if len({self.options[name].name for name, _ in found}) > 1:
            names = ", ".join(sorted(name for name, _ in found)[:4])
            self._problem("ambiguous_option", f"{word.text} could mean {names}, so the engine refuses it", word)
            self._values("many", None, word)
            return
        name, value = found[0]
        option = self.options[name]
        off = name in option.negated
        arity: Arity = "none" if off else option.arity
        values = self._values(arity, value, word)
        if values is None:
            return
        if option.name in self.given:
            earlier = self.given.pop(option.name)
            if self.dialect.repeats:
                text = f"{name} is given twice, and the engine takes the last, {_shown(values) or 'this one'}"
                self._problem("repeated_option", text, earlier.word, matters=False)
            else:
                self._problem("bad_argument", f"{name} is given twice, which the engine refuses", word)
        self.given[option.name] = Given(option.name, word, values, off)

    def _values(self, arity: Arity, glued: str | None, word: Word) -> tuple[Word, ...] | None:
        """The option's values; None where one is missing or one too many, which is a Problem."""
        if arity in ("none", "bool"):
            if glued is not None:
                self._problem("bad_argument", f"{word.text.partition('=')[0]} takes no value, so the engine refuses {word.text}", word)
                return None
            return ()
        if glued is not None:
            # a value that a variable gave stands where the variable does
            place = place_at(word.spots, word.place, len(word.text) - len(glued)) if word.spots else word.place
            return (Word(glued, place if place[:2] != word.place[:2] else word.place, word.literal),)
        most = len(self.words) if arity == "many" else 1
        taken: list[Word] = []
        while self.at < len(self.words) and len(taken) < most and self._is_value(self.words[self.at], arity):
            taken.append(self.words[self.at])
            self.at += 1
        if not taken and arity != "maybe":
            self._problem("bad_argument", f"{word.text} lacks its value, so the engine refuses it", word)
            return None
        return tuple(taken)

    def _is_value(self, word: Word, arity: Arity) -> bool:
        if self.dialect.strict_values or arity in ("maybe", "many"):
            return not self._is_option(word.text) and word.text != "--"
        return True

    def _unknown(self, word: Word) -> None:
        """An option the list does not have keeps the words behind it, so that they are not taken for a model."""
        self._values("maybe", word.text.partition("=")[2] if "=" in word.text else None, word)
        if word.literal:
            from difflib import get_close_matches  # only what is not known pays for it

            name = word.text.partition("=")[0][:60]
            dashed = name.replace("_", "-")
            alike = [dashed] if dashed in self.options else get_close_matches(name, self.options, 1, ALIKE)
            guess = f": is it {alike[0]}?" if alike else ""
            code = "misspelled_option" if alike else "unknown_option"
            self._problem(code, f"kvcli does not know the option {name}{guess}", word, matters=bool(alike))
        else:
            text = f"{word.text[:60]} is only known where it runs, and may set anything"
            self._problem("not_literal", text, word)

    def _problem(self, code: str, message: str, word: Word, matters: bool = True) -> None:
        self.problems.append(Problem(code, " ".join(message.split()), word.place, matters))


def _shown(values: Iterable[Word]) -> str:
    return " ".join(value.text for value in values)[:60]
