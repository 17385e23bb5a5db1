"""Shell text to tokens with offsets: the grammar of POSIX sh that command lines use, and bash's arrays. Nothing is run or expanded here.

A token is an operator or a word; a word is parts, because `a"$B"'c'` is one word of three kinds of quoting.
"""

from __future__ import annotations

import re
from typing import NamedTuple

MAX_DEPTH = 20

_OPERATOR = re.compile(r"&&|\|\||;;|;&|\|&|&>>|&>|<<<|<<-|<<|>>|>&|<&|>\||<>|[;&|()<>\n]")
_REDIRECT = frozenset(["<", ">", ">>", "<<", "<<-", "<<<", ">&", "<&", ">|", "<>", "&>", "&>>"])
#: A continued line goes on inside a name.
_NAME = re.compile(r"(?:\\\n)*[A-Za-z_](?:[A-Za-z0-9_]|\\\n)*")
_BRACED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*|[0-9]+|[@*#?$!-])(\[[@*0-9]+\])?(:?[-=+?])?")
_ENDS_WORD = " \t\n;&|()<>"


class Part(NamedTuple):
    """A piece of a word. `kind`: `text`; `var` (name in `text`, operator in `op`, its word in `argument`); `unknown` (what only the shell
    can know: substitutions, arithmetic, pattern operators). `raw` is the piece as written."""

    kind: str
    text: str
    offset: int
    quoted: bool
    raw: str = ""
    op: str = ""
    argument: tuple[Part, ...] = ()


class Token(NamedTuple):
    """`kind`: `word`, `op` (text in `raw`) or `redirect` (its target is the next word). `array`: the words of `A=(...)`."""

    kind: str
    raw: str
    offset: int
    parts: tuple[Part, ...] = ()
    array: tuple[Token, ...] | None = None

    @property
    def bare(self) -> str:
        """The word where it has neither quotes nor expansions, else ''."""
        return self.parts[0].text if len(self.parts) == 1 and self.parts[0].kind == "text" and not self.parts[0].quoted else ""


class Unclosed(Exception):
    """A quote, a brace or a parenthesis is not closed. `offset`: where it opened."""

    def __init__(self, offset: int, what: str) -> None:
        super().__init__(what)
        self.offset, self.what = offset, what


def tokenize(text: str) -> list[Token]:
    """The tokens of a script. Raises Unclosed."""
    tokens, _ = _Lexer(text).tokens(0, "")
    return tokens


class _Lexer:
    def __init__(self, text: str) -> None:
        self.text = text
        self.depth = 0

    def tokens(self, at: int, closer: str) -> tuple[list[Token], int]:
        """Tokens from `at` to the end, or to the operator `closer` (then the offset after it)."""
        text, tokens = self.text, list[Token]()
        heredocs: list[tuple[str, bool]] = []
        while at < len(text):
            char = text[at]
            if char in " \t":
                at += 1
            elif text.startswith("\\\n", at):
                at += 2
            elif char == "#":
                end = text.find("\n", at)
                at = len(text) if end < 0 else end
            elif (match := _OPERATOR.match(text, at)) is not None:
                raw = match.group()
                if raw == closer:
                    return tokens, match.end()
                tokens.append(Token("redirect" if raw in _REDIRECT else "op", raw, at))
                at = match.end()
                if raw == "\n" and heredocs:
                    at = self._skip_heredocs(at, heredocs)
            else:
                token, at = self._word(at)
                previous = tokens[-1] if tokens else None
                if previous is not None and previous.kind == "redirect" and previous.raw in ("<<", "<<-"):
                    heredocs.append((token.raw.replace("\\", "").strip("'\""), previous.raw == "<<-"))
                if token.raw.isdigit() and at < len(text) and text[at] in "<>":
                    continue
                tokens.append(token)
        if closer:
            raise Unclosed(max(at - 1, 0), f"`{closer}` is missing")
        return tokens, at

    def _skip_heredocs(self, at: int, heredocs: list[tuple[str, bool]]) -> int:
        while heredocs and at < len(self.text):
            end = self.text.find("\n", at)
            end = len(self.text) if end < 0 else end
            line = self.text[at:end]
            if (line.lstrip("\t") if heredocs[0][1] else line) == heredocs[0][0]:
                heredocs.pop(0)
            at = end + 1
        heredocs.clear()
        return min(at, len(self.text))

    def _word(self, at: int) -> tuple[Token, int]:
        start, text = at, self.text
        parts: list[Part] = []
        while at < len(text) and text[at] not in _ENDS_WORD:
            at = self._piece(at, parts, "")
        array = None
        if at < len(text) and text[at] == "(" and text[at - 1] == "=" and re.fullmatch(r"[A-Za-z_]\w*\+?=", text[start:at]):
            self._deeper(at)
            inner, at = self.tokens(at + 1, ")")
            self.depth -= 1
            array = tuple(token for token in inner if token.kind == "word")
        return Token("word", text[start:at], start, _joined(parts), array), at

    def _piece(self, at: int, parts: list[Part], until: str) -> int:
        """Reads one piece at `at` into `parts`. `until`: '' in a word, `}` in the word of an expansion, `"` in double quotes, or `"}`."""
        text, char, quoted = self.text, self.text[at], '"' in until
        if char == "\\":
            follow = text[at + 1 : at + 2]
            if follow == "\n":
                return at + 2
            if not follow or (quoted and follow not in '$`"\\' and not ("}" in until and follow == "}")):
                parts.append(Part("text", char, at, True))
                return at + 1
            parts.append(Part("text", follow, at, True))
            return at + 2
        if char == "'" and not quoted:
            end = text.find("'", at + 1)
            if end < 0:
                raise Unclosed(at, "a single quote is not closed")
            parts.append(Part("text", text[at + 1 : end], at + 1, True))
            return end + 1
        if char == '"' and not quoted:
            return self._double(at, parts)
        if char == "`":
            end = at + 1
            while end < len(text) and text[end] != "`":
                end += 2 if text[end] == "\\" else 1
            if end >= len(text):
                raise Unclosed(at, "a backquote is not closed")
            parts.append(Part("unknown", text[at : end + 1], at, quoted, text[at : end + 1]))
            return end + 1
        if char == "$":
            return self._dollar(at, parts, quoted)
        end = at + 1
        stops = "\\'\"`$" + (until or _ENDS_WORD)
        while end < len(text) and text[end] not in stops:
            end += 1
        parts.append(Part("text", text[at:end], at, quoted))
        return end

    def _double(self, at: int, parts: list[Part]) -> int:
        start = at
        at += 1
        parts.append(Part("text", "", at, True))
        while at < len(self.text):
            if self.text[at] == '"':
                return at + 1
            at = self._piece(at, parts, '"')
        raise Unclosed(start, "a double quote is not closed")

    def _dollar(self, at: int, parts: list[Part], quoted: bool) -> int:
        text = self.text
        follow = text[at + 1 : at + 2]
        if follow == "(":
            end = self._closing(at + 1)
            parts.append(Part("unknown", text[at:end], at, quoted, text[at:end]))
            return end
        if follow == "{":
            return self._braced(at, parts, quoted)
        match = _NAME.match(text, at + 1)
        if match or (follow and follow in "@*#?$!-0123456789"):
            written = match.group() if match else follow
            name = written.replace("\\\n", "")
            parts.append(Part("var", name, at, quoted, "$" + name))
            return at + 1 + len(written)
        parts.append(Part("text", "$", at, quoted))
        return at + 1

    def _braced(self, at: int, parts: list[Part], quoted: bool) -> int:
        text = self.text
        match = _BRACED.match(text, at + 2)
        if match is None or (match.group(3) is None and text[match.end() : match.end() + 1] != "}"):
            end = self._closing(at + 1)
            parts.append(Part("unknown", text[at:end], at, quoted, text[at:end]))
            return end
        self._deeper(at)
        argument: list[Part] = []
        here = match.end()
        while here < len(text) and text[here] != "}":
            here = self._piece(here, argument, '"}' if quoted else "}") if text[here] != '"' or not quoted else self._double(here, argument)
        self.depth -= 1
        if here >= len(text):
            raise Unclosed(at, "`${` is not closed")
        name = match.group(1) + (match.group(2) or "")
        parts.append(Part("var", name, at, quoted, text[at : here + 1], match.group(3) or "", tuple(argument)))
        return here + 1

    def _closing(self, at: int) -> int:
        """The offset after the bracket that closes the one at `at`; quotes inside are passed over."""
        text, start = self.text, at
        opener = text[at]
        closer = {"(": ")", "{": "}"}[opener]
        level = 0
        while at < len(text):
            char = text[at]
            if char == "\\":
                at += 1
            elif char in "'\"":
                end = text.find(char, at + 1)
                at = len(text) if end < 0 else end
            elif char == opener:
                level += 1
            elif char == closer:
                level -= 1
                if not level:
                    return at + 1
            at += 1
        raise Unclosed(start, f"`${opener}` is not closed")

    def _deeper(self, at: int) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Unclosed(at, f"expansions are nested deeper than {MAX_DEPTH} levels")


def _joined(parts: list[Part]) -> tuple[Part, ...]:
    """Neighbouring unquoted texts as one part: a word that a continuation splits is still one bare word."""
    result: list[Part] = []
    for part in parts:
        last = result[-1] if result else None
        if last is not None and last.kind == part.kind == "text" and not last.quoted and not part.quoted:
            result[-1] = last._replace(text=last.text + part.text)
        else:
            result.append(part)
    return tuple(result)
