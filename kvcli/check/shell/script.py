"""What a shell script would run: its simple commands in order, with variables expanded as far as the files themselves define them.

Branches are not decided. A command inside `if`, `case`, a loop, a function or after `||` is kept but marked `guarded`; a variable
set there is not known afterwards. Substitutions and arithmetic are never run: words that hold them are not literal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from kvcli.check.launch import OPEN, Problem
from kvcli.check.nodes import Place, Word, place_at
from kvcli.check.shell.expand import Expander, as_quoted
from kvcli.check.shell.lexer import Token, Unclosed, tokenize

MAX_CHARACTERS = 200_000
MAX_FRAMES = 100

_OPENERS = {"if": "fi", "while": "done", "until": "done", "for": "done", "select": "done", "case": "esac"}
_INNER = frozenset(["then", "do", "else", "elif", "!", "time", "in"])
_DECLARES = frozenset(["export", "declare", "typeset", "local", "readonly"])
_ENDS = frozenset(["kill", "pkill", "killall"])
_TESTS = frozenset(["[", "test", "[["])

#: path in the container -> the script's text, None where the set does not hold it
Finder = Callable[[str], Word | None]


class Command(NamedTuple):
    """A simple command. `environment`: what it sees. `guarded`: it may not run. `fallback`: it runs where the one before it fails.
    `background`: what follows does not wait for it."""

    words: tuple[Word, ...]
    environment: Mapping[str, Word]
    guarded: bool
    fallback: bool = False
    background: bool = False


def run_script(
    script: Word, environment: Mapping[str, Word], params: Sequence[Word] = (), find: Finder = lambda path: None, zero: Word | None = None
) -> tuple[tuple[Command, ...], tuple[Problem, ...]]:
    """The commands of `script` (`params`: $1, $2, ...; `zero`: $0). What the shell would refuse becomes a Problem."""
    if len(script.text) > MAX_CHARACTERS:
        message = f"a script of {len(script.text)} characters is not read, at most {MAX_CHARACTERS} are"
        return (), (Problem("script_not_followed", message, script.place),)
    shell = _Shell(environment, params, find)
    if zero is not None:
        shell.variables["0"] = zero
    shell.run(script)
    return tuple(shell.commands), tuple(shell.problems)


def split_words(text: Word) -> tuple[Word, ...]:
    """The words of a command line that no shell runs (compose's `command:`): quotes count, variables and operators do not.

    A text that a shell would refuse is one word that is not literal.
    """
    if len(text.text) > MAX_CHARACTERS:
        return (text._replace(literal=False),)
    expander = Expander({}, (), text)
    expander.plain = True
    try:
        return tuple(word for token in tokenize(text.text) for word in _plain(token, expander))
    except Unclosed:
        return (text._replace(literal=False),)


def _plain(token: Token, expander: Expander) -> list[Word]:
    if token.kind == "word":
        return expander.expand(token)
    return [] if token.raw == "\n" else [Word(token.raw, expander.place(token.offset))]


def _in_background(tokens: Sequence[Token]) -> list[bool]:
    """For each token whether the list that it stands in ends with `&`, and nothing behind it names a process to end."""
    found, background, ends = [False] * (len(tokens) + 1), False, False
    for index in range(len(tokens) - 1, -1, -1):
        token = tokens[index]
        if token.kind == "op" and token.raw not in ("|", "|&", "&&", "||"):
            background = token.raw == "&"
        ends = ends or token.bare in _ENDS
        found[index] = background and not ends
    return found


class _Frame(NamedTuple):
    closer: str
    guarded: bool
    fallback: bool = False


class _Shell(Expander):
    def __init__(self, environment: Mapping[str, Word], params: Sequence[Word], find: Finder) -> None:
        super().__init__(environment, params, Word("", Place("", 1)))
        self.exported: set[str] = set(environment)
        self.find = find
        self.commands: list[Command] = []
        self.problems: list[Problem] = []
        self.frames: list[_Frame] = []
        self.level = 0
        self.done = self.background = False

    # commands

    def run(self, script: Word) -> None:
        outer, self.script = self.script, script
        self.level += 1
        try:
            self._run(tokenize(script.text))
        except Unclosed as error:
            place = place_at(script.spots, script.place, error.offset)
            self.problems.append(Problem("bad_shell", f"the shell would refuse this script: {error.what}", place))
        self.level -= 1
        self.script = outer

    def _run(self, tokens: list[Token]) -> None:
        base, index, after = len(self.frames), 0, ""
        background = _in_background(tokens)
        last_test = False
        while index < len(tokens) and not self.done:
            token = tokens[index]
            if token.kind == "op":
                if token.raw == "(":
                    self.frames.append(_Frame(")", after == "||", after == "||"))
                elif token.raw == ")":
                    self._close(")", base)
                after = token.raw
                index += 1
                continue
            word = token.bare
            if len(self.frames) > MAX_FRAMES:
                raise Unclosed(token.offset, f"it is nested deeper than {MAX_FRAMES} levels")
            closers = {frame.closer for frame in self.frames[base:]}
            if word in _OPENERS:
                index = self._open(tokens, index)
            elif word == "{":
                self.frames.append(_Frame("}", after == "||", after == "||"))
                index += 1
            elif word in closers:
                self._close(word, base)
                index += 1
                continue
            elif word in _INNER:
                index += 1
            elif word == "function" or _is_function(tokens, index):
                self.frames.append(_Frame("}", True))
                while index < len(tokens) and tokens[index].bare != "{":
                    index += 1
                index += 1
            else:
                end = _end_of_command(tokens, index)
                if end < len(tokens) and tokens[end].raw == ")" and "esac" in closers and ")" not in closers:
                    index = end + 1  # a pattern of `case`
                    continue
                guarded = any(frame.guarded for frame in self.frames) or after == "||" or (after == "&&" and last_test)
                fallback = after == "||" or any(frame.fallback for frame in self.frames)
                self.background = background[end]
                self._command(tokens[index:end], guarded, fallback)
                last_test = tokens[index].bare in _TESTS or (last_test and after == "&&")
                index = max(end, index + 1)
                after = ""
        del self.frames[base:]

    def _open(self, tokens: list[Token], index: int) -> int:
        word = tokens[index].bare
        self.frames.append(_Frame(_OPENERS[word], True))
        index += 1
        if word in ("for", "select", "case"):
            if word != "case" and index < len(tokens):
                self._forget(tokens[index].bare)
            while index < len(tokens) and tokens[index].kind == "word" and tokens[index].bare not in ("do",):
                index += 1
                if word == "case" and tokens[index - 1].bare == "in":
                    break
        return index

    def _close(self, closer: str, base: int) -> None:
        for index in range(len(self.frames) - 1, base - 1, -1):
            if self.frames[index].closer == closer:
                del self.frames[index:]
                return

    def _command(self, tokens: list[Token], guarded: bool, fallback: bool) -> None:
        own: dict[str, Word] = {}
        words: list[Word] = []
        skip = False
        for token in tokens:
            if token.kind == "redirect" or skip:
                skip = token.kind == "redirect"
                continue
            name = _assigned(token)
            if name and not words:
                self._assign(token, name, guarded, own)
            elif name and words[0].text in _DECLARES:
                self._assign(token, name, guarded, None)
                if words[0].text == "export" or any("x" in word.text for word in words[1:] if word.text[:1] == "-"):
                    self.exported.add(name)
            else:
                words += self.expand(token)
        if not words:
            self.variables.update(own)
            return
        self._simple(words, own, guarded, fallback)

    def _simple(self, words: list[Word], own: Mapping[str, Word], guarded: bool, fallback: bool) -> None:
        program = words[0].text
        if program in _DECLARES:
            self.exported.update(word.text for word in words[1:] if program == "export")
            self._opens(words)
        elif program == "set":
            if len(words) > 1 and words[1].text == "--":
                self.params = words[2:]
            elif any(word.text == "-a" or word.text == "allexport" for word in words[1:]):
                self.exported.update(self.variables)
        elif program == "shift":
            del self.params[: int(words[1].text) if len(words) > 1 and words[1].text.isdigit() and len(words[1].text) < 9 else 1]
        elif program in ("unset", "read"):
            for word in words[1:]:
                self._forget(word.text)
        elif program in (".", "source") and len(words) > 1:
            self._source(words[1])
        elif program == "eval" and self.level < 10:
            self._opens(words)
            self.run(Word(" ".join(word.text for word in words[1:]), words[0].place, all(word.literal for word in words)))
        elif program == "exit":
            self.done = self.done or not guarded
        elif program in _TESTS or program in (":", "true", "cd", "trap", "wait", "ulimit", "umask", "return"):
            pass
        else:
            leaves = program == "exec" and len(words) > 1
            seen = {name: self.variables[name] for name in self.exported if name in self.variables} | dict(own)
            self.commands.append(Command(tuple(words[1:] if leaves else words), seen, guarded, fallback, self.background))
            self.done = self.done or (leaves and not guarded)

    def _opens(self, words: Sequence[Word]) -> None:
        """What is only known where it runs may set any variable: `export $(cat .env)`, `eval "$(...)"`."""
        if not all(word.literal for word in words):
            self.variables[OPEN] = Word("", words[0].place, False)

    def _source(self, path: Word) -> None:
        script = self.find(path.text) if path.literal else None
        if script is None:
            message = f"{path.text} is read into this script and is not among the files"
            self.problems.append(Problem("other_script_not_found", message, path.place, matters=False))
            self.variables[OPEN] = Word("", path.place, False)
        elif self.level < 10:
            self.run(script)

    # variables

    def _assign(self, token: Token, name: str, guarded: bool, own: dict[str, Word] | None) -> None:
        target = self.variables if own is None else own
        head = token.parts[0].text
        append = head[len(name)] == "+"
        if token.array is not None:
            values = [word for inner in token.array for word in self.expand(inner)]
            if guarded:
                values = [word._replace(literal=False) for word in values]
            self.arrays[name] = (self.arrays.get(name, []) if append or guarded else []) + values
            return
        rest = token.parts[0]._replace(text=head[len(name) + 1 + append :], offset=token.offset + len(name) + 1 + append)
        fields = self.expand(token._replace(parts=(rest._replace(quoted=True), *(as_quoted(part) for part in token.parts[1:]))))
        value = fields[0] if fields else Word("", self.place(token.offset))
        if append and name in self.variables:
            value = value._replace(text=self.variables[name].text + value.text, literal=value.literal and self.variables[name].literal)
        target[name] = Word("", value.place, False) if guarded else value
        if own is not None and name in self.exported and guarded:
            self.variables[name] = target[name]

    def _forget(self, name: str) -> None:
        self.arrays.pop(name, None)
        self.variables[name] = Word("", self.script.place, False)


def _assigned(token: Token) -> str:
    """The name that `NAME=...` or `NAME+=...` assigns to, else ''."""
    if token.kind != "word" or not token.parts or token.parts[0].kind != "text" or token.parts[0].quoted:
        return ""
    name, equals, _ = token.parts[0].text.partition("=")
    name = name.removesuffix("+")
    return name if equals and name.isidentifier() and name.isascii() else ""


def _is_function(tokens: list[Token], index: int) -> bool:
    return [token.raw for token in tokens[index + 1 : index + 3]] == ["(", ")"] and bool(tokens[index].bare)


def _end_of_command(tokens: list[Token], index: int) -> int:
    if tokens[index].bare == "[[":
        while index < len(tokens) and tokens[index].bare != "]]":
            index += 1
        return min(index + 1, len(tokens))
    while index < len(tokens) and tokens[index].kind != "op":
        index += 1
    return index
