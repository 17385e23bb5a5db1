"""Words of a shell command after expansion: variables that are known, arrays, parameters, field splitting."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kvcli.check.launch import OPEN
from kvcli.check.nodes import Place, Word, place_at, spots_between
from kvcli.check.shell.lexer import Part, Token, Unclosed

MAX_WORDS = 20_000


class Expander:
    """Expands tokens of `script`. A variable that is not set, or not literal, stays as it is written and makes its word not literal."""

    def __init__(self, environment: Mapping[str, Word], params: Sequence[Word], script: Word) -> None:
        self.variables: dict[str, Word] = dict(environment)
        self.arrays: dict[str, list[Word]] = {}
        self.params = list(params)
        self.script = script
        self.words = 0
        #: nothing is expanded, `$VAR` stays as it is: words that no shell reads
        self.plain = False

    def place(self, offset: int) -> Place:
        return place_at(self.script.spots, self.script.place, offset)

    def expand(self, token: Token) -> list[Word]:
        """The fields of a word after expansion and splitting. A field that is one whole variable has the place of its value."""
        fields = _Fields(self.place(token.offset))
        if token.bare.startswith("~"):
            fields.literal = False
        self._emit(token.parts, fields)
        return self._bounded(fields.close())

    def _bounded(self, words: list[Word]) -> list[Word]:
        self.words += len(words) + sum(len(word.text) for word in words) // 100
        if self.words > MAX_WORDS:
            raise Unclosed(0, "it expands to too many words")
        return words

    def _emit(self, parts: Iterable[Part], fields: _Fields, split: bool = False) -> None:
        for part in parts:
            if part.kind == "text":
                if split and not part.quoted:
                    fields.split(Word(part.text, self.place(part.offset)))
                else:
                    fields.add(part.text, self.place(part.offset))
                    last = part.offset + len(part.text)
                    fields.mark((start - last, place) for start, place in spots_between(self.script.spots, part.offset, last))
            elif self.plain:
                fields.add(part.raw, self.place(part.offset))
            elif part.kind == "unknown":
                fields.add(part.raw, self.place(part.offset), literal=False)
            else:
                self._variable(part, fields)

    def _variable(self, part: Part, fields: _Fields) -> None:
        name = part.text
        several = self._several(name)
        if several is not None and not part.op:
            if part.quoted and name[-1] != "*" and not name.endswith("*]"):
                fields.several(several)
            else:
                for index, word in enumerate(several):
                    if index:
                        fields.split(Word(" ", word.place)) if not part.quoted else fields.add(" ", word.place)
                    fields.split(word) if not part.quoted else fields.add(word.text, word.place, word.literal)
            return
        value = self._value(name)
        op = part.op
        empty = value is None or (op[:1] == ":" and value.literal and not value.text)
        if op[-1:] in ("-", "=") and value is None and OPEN in self.variables and not name.isdigit():
            fields.add(part.raw, self.place(part.offset), literal=False)  # what is not among the files may set it
        elif op[-1:] in ("-", "=") and empty:
            if op[-1] == "=":
                inner = _Fields(self.place(part.offset))
                self._emit((as_quoted(each) for each in part.argument), inner)
                self.variables[name] = (inner.close() or [Word("", inner.place)])[0]
            self._emit(part.argument, fields, split=not part.quoted)
        elif op[-1:] == "+":
            if value is not None and not value.literal:
                fields.add(part.raw, self.place(part.offset), literal=False)
            elif not empty:
                self._emit(part.argument, fields, split=not part.quoted)
        elif value is None or not value.literal or (op[-1:] == "?" and empty):
            fields.add(part.raw, self.place(part.offset), literal=False)
        elif part.quoted:
            fields.add(value.text, value.place)
        else:
            fields.split(value)

    def _several(self, name: str) -> list[Word] | None:
        if name in ("@", "*"):
            return self.params
        if name.endswith(("[@]", "[*]")):
            return self.arrays.get(name[:-3], [])
        return None

    def _value(self, name: str) -> Word | None:
        if name.isdigit() and name != "0":
            index = int(name) if len(name) < 6 else 0
            return self.params[index - 1] if 0 < index <= len(self.params) else None
        if name == "#":
            return Word(str(len(self.params)), self.script.place)
        if name.endswith("]") or (name in self.arrays and name not in self.variables):
            words = self.arrays.get(name.split("[")[0], [])
            index = int(name[:-1].split("[")[1]) if "[" in name and len(name) < 40 else 0
            return words[index] if index < len(words) else None
        return self.variables.get(name)


class _Fields:
    """Collects the fields of one word."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.done: list[Word] = []
        self.text: list[str] = []
        self.first: Place | None = None
        self.literal = True
        self.length = 0
        self.spots: list[tuple[int, Place]] = []

    def mark(self, spots: Iterable[tuple[int, Place]]) -> None:
        """Places inside the text added last, at offsets from its end."""
        self.spots.extend((self.length + offset, place) for offset, place in spots)

    def add(self, text: str, place: Place, literal: bool = True) -> None:
        if self.first is None:
            # an opening quote or an empty text must not hide that the rest is one variable
            self.first = (place if self.done or place[:2] != self.place[:2] else self.place) if text else None
        self.text.append(text)
        self.spots.append((self.length, place))
        self.length += len(text)
        self.literal = self.literal and literal

    def split(self, value: Word) -> None:
        """Adds an unquoted value: white space in it ends a field."""
        if not value.literal:
            return self.add(value.text, value.place, False)
        offset = 0
        for piece in value.text.replace("\t", " ").replace("\n", " ").split(" "):
            if offset:
                self._end()
            if piece:
                self.add(piece, place_at(value.spots, value.place, offset))
            offset += len(piece) + 1
        return None

    def several(self, words: Sequence[Word]) -> None:
        """`"$@"`: each word a field of its own; text before and after joins the first and the last."""
        for index, word in enumerate(words):
            if index:
                self._end()
            self.add(word.text, word.place, word.literal)
        if not words and self.text == [""]:
            self.text.clear()  # "$@" without parameters is no word at all

    def _end(self) -> None:
        if self.text:
            several = len({place[:2] for _, place in self.spots}) > 1
            self.done.append(Word("".join(self.text), self.first or self.place, self.literal, tuple(self.spots) if several else ()))
        self.text, self.first, self.literal, self.length, self.spots = [], None, True, 0, []

    def close(self) -> list[Word]:
        self._end()
        return self.done


def as_quoted(part: Part) -> Part:
    return part._replace(quoted=True, argument=tuple(as_quoted(each) for each in part.argument))
