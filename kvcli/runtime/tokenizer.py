"""The tokenizer that a GGUF file carries: its vocabulary, merges or scores, and special tokens, and nothing from a network.

Encoding is the `tokenizers` package's, set up from the metadata. Decoding is a table from token id to bytes and Python's
incremental UTF-8 decoder, so a stream of tokens and a whole list of them give the same text by construction.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from kvcli.errors import BadInput, NotModelled

# llama.cpp's token types; 1 is a normal token
UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 2, 3, 4, 5, 6
#: Control tokens that end a turn in some chat format, whichever of them the file names as its end of sequence.
END_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<|end|>", "<|endoftext|>")
#: The word boundary of SentencePiece vocabularies.
SPACE = "\u2581"

_GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{numbers}"
    r"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
#: tokenizer.ggml.pre -> the splits made one after the other. "default" is llama.cpp's, for files that do not say.
_SPLITS: dict[str, tuple[str, ...]] = {
    "gpt-2": (_GPT2_WORDS,),
    "smollm": (r"\p{N}", _GPT2_WORDS),
    "llama-bpe": (_WORDS.format(numbers=r"\p{N}{1,3}"),),
    "qwen2": (_WORDS.format(numbers=r"\p{N}"),),
    "default": (r"[\p{P}$+<=>^~|]+", _GPT2_WORDS, r"\p{N}+", r"[0-9][0-9][0-9]"),
}
_ALIASES = {"gpt2": "gpt-2", "llama3": "llama-bpe", "llama-v3": "llama-bpe"}


class Header(Protocol):
    """What is needed of `kvcli.model.gguf.header.GgufHeader`."""

    @property
    def metadata(self) -> Mapping[str, Any]: ...
    def strings(self, key: str) -> list[str]: ...
    def numbers(self, key: str) -> Sequence[int | float]: ...


class Tokenizer:
    """Text to token ids and back, for one model file. Raises BadInput for a damaged vocabulary, NotModelled for an unknown kind."""

    def __init__(self, header: Header) -> None:
        tokens = _tokens(header)
        types = _token_types(header, len(tokens))
        kind = _text(header, "model")
        self.vocab_size = len(tokens)
        self.chat_template = _text(header, "chat_template") or None
        self.bos_id = _token_id(header, "bos_token_id", self.vocab_size)
        self._eos_id = _token_id(header, "eos_token_id", self.vocab_size)
        self.bos_token = "" if self.bos_id is None else tokens[self.bos_id]
        self.eos_token = "" if self._eos_id is None else tokens[self._eos_id]
        self.eos_ids = self._end_ids(header, tokens, types)

        byte_level = kind == "gpt2"
        if byte_level:
            pre = _pre_name(header)
            self._backend = _byte_level(header, tokens, pre)
        elif kind == "llama":
            pre = ""
            self._backend = _sentencepiece(header, tokens, types)
        else:
            raise NotModelled(
                f"the file's tokenizer is of the kind {kind!r}, which kvcli cannot build",
                hint="supported are 'gpt2' (byte-level BPE) and 'llama' (SentencePiece BPE)",
                code="unknown_tokenizer",
            )
        self._backend.add_tokens(
            [
                AddedToken(token, normalized=False, special=type_ != USER_DEFINED)
                for token, type_ in zip(tokens, types, strict=True)
                if type_ in (CONTROL, USER_DEFINED, UNKNOWN) and token
            ]
        )
        # What llama.cpp does for a file that does not say.
        self.add_bos = _flag(header, "add_bos_token", default=kind == "llama" or pre == "llama-bpe")
        self._strip_first_space = not byte_level and _flag(header, "add_space_prefix", default=True)
        self._bytes = _byte_table(tokens, types, byte_level)

    def _end_ids(self, header: Header, tokens: list[str], types: list[int]) -> frozenset[int]:
        named = [self._eos_id, *(_token_id(header, f"{name}_token_id", self.vocab_size) for name in ("eot", "eom"))]
        if self.chat_template:
            named += [i for i, token in enumerate(tokens) if types[i] == CONTROL and token in END_OF_TURN]
        return frozenset(i for i in named if i is not None)

    def encode(self, text: str, special: bool) -> list[int]:
        """Token ids of the text. `special`: a control token spelt out in it is that token (a rendered chat template);
        otherwise it is plain text (what a user typed). No BOS is added, see `with_bos`. Raises BadInput.

        A byte that the vocabulary has no token for is left out, as llama.cpp does it; SmolLM2's lacks a few that hardly any text holds.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise BadInput(f"the text is not valid Unicode at character {error.start}", code="bad_text") from error
        self._backend.encode_special_tokens = not special
        return self._backend.encode(text, add_special_tokens=False).ids

    def with_bos(self, ids: list[int]) -> list[int]:
        """The ids after the BOS token, if this model wants one and a template has not put it there already."""
        if not self.add_bos or self.bos_id is None or ids[:1] == [self.bos_id]:
            return ids
        return [self.bos_id, *ids]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of the ids, without special tokens; bytes that are no UTF-8 become replacement characters."""
        stream = self.stream()
        return "".join(map(stream.push, ids)) + stream.finish()

    def stream(self) -> TextStream:
        """A decoder that takes one token at a time."""
        return TextStream(self._bytes, self._strip_first_space)


class TextStream:
    """Turns tokens into text as they come. A character whose bytes are spread over several tokens waits for the last of them."""

    def __init__(self, table: Sequence[bytes], strip_first_space: bool) -> None:
        self._table = table
        self._strip = strip_first_space
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """The text that this token completes; empty for a special token, an unknown id or half a character."""
        if not 0 <= token_id < len(self._table):
            # Output matrices are often padded beyond the vocabulary.
            return ""
        return self._first(self._utf8.decode(self._table[token_id]))

    def finish(self) -> str:
        """What is still held back, as replacement characters."""
        return self._first(self._utf8.decode(b"", final=True))

    def _first(self, text: str) -> str:
        if text and self._strip:
            # SentencePiece put a space before the first word, and takes it away again.
            self._strip = False
            return text.removeprefix(" ")
        return text


def _byte_level(header: Header, tokens: list[str], pre: str) -> Backend:
    """BPE over bytes that are written as printable characters, as GPT-2 and most models since do it."""
    # The first character may itself be a space, so the separator is looked for behind it.
    merges = [(merge[: merge.find(" ", 1)], merge[merge.find(" ", 1) + 1 :]) for merge in header.strings("tokenizer.ggml.merges")]
    # Llama 3 takes a whole word that is in the vocabulary even where no chain of merges leads to it.
    backend = _backend({"vocab": _ids(tokens), "merges": merges, "ignore_merges": pre == "llama-bpe"})
    if pre == "qwen2":
        backend.normalizer = normalizers.NFC()
    splits: list[pre_tokenizers.PreTokenizer] = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in _SPLITS[pre]]
    backend.pre_tokenizer = pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    return backend


def _sentencepiece(header: Header, tokens: list[str], types: list[int]) -> Backend:
    """BPE over characters whose merges are implied by the scores: the best-scored piece that two neighbours form comes first."""
    scores = header.numbers("tokenizer.ggml.scores")
    if len(scores) != len(tokens):
        raise BadInput(f"the file has {len(tokens):,} tokens but {len(scores):,} token scores", code="bad_vocabulary")
    # Control, unknown and byte pieces are never the outcome of a merge.
    pieces = {token: i for i, token in enumerate(tokens) if types[i] not in (CONTROL, UNKNOWN, BYTE)}
    ranked: list[tuple[float, int, str, str]] = []
    for piece, i in pieces.items():
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in pieces and right in pieces:
                # Of the ways to form one piece the longest left half goes first, as merging from the left would find it.
                ranked.append((-scores[i], -cut, left, right))
    ranked.sort()
    unknown = _token_id(header, "unknown_token_id", len(tokens))
    if unknown is None and UNKNOWN in types:
        unknown = types.index(UNKNOWN)
    options: dict[str, Any] = {} if unknown is None else {"unk_token": tokens[unknown], "fuse_unk": True}
    merges = [(left, right) for _, _, left, right in ranked]
    backend = _backend({"vocab": _ids(tokens), "merges": merges, "byte_fallback": True, **options})
    spaces: list[normalizers.Normalizer] = [normalizers.Replace(" ", SPACE)]
    if _flag(header, "add_space_prefix", default=True):
        spaces.insert(0, normalizers.Prepend(SPACE))
    backend.normalizer = normalizers.Sequence(spaces)
    return backend


def _backend(options: dict[str, Any]) -> Backend:
    try:
        return Backend(models.BPE(**options))
    except Exception as error:  # the package raises bare Exception for a merge that is not in the vocabulary
        raise BadInput(f"the file's vocabulary and merges do not fit together: {str(error)[:200]}", code="bad_vocabulary") from error


def _ids(tokens: list[str]) -> dict[str, int]:
    return {token: i for i, token in enumerate(tokens)}


def _byte_table(tokens: list[str], types: list[int], byte_level: bool) -> list[bytes]:
    """The bytes that each token stands for; none for special and unused ones."""
    table: list[bytes] = []
    alphabet = _byte_alphabet()
    for token, type_ in zip(tokens, types, strict=True):
        if type_ in (CONTROL, UNKNOWN, UNUSED):
            table.append(b"")
        elif type_ == USER_DEFINED:
            table.append(token.replace(SPACE, " ").encode() if not byte_level else token.encode())
        elif byte_level:
            table.append(b"".join(alphabet.get(char) or char.encode() for char in token))
        elif type_ == BYTE:
            table.append(_byte_of(token))
        else:
            table.append(token.replace(SPACE, " ").encode())
    return table


def _byte_of(token: str) -> bytes:
    try:
        return bytes([int(token.removeprefix("<0x").removesuffix(">"), 16)])
    except ValueError as error:
        raise BadInput(f"the file's byte token {token[:40]!r} is not written as <0x00> to <0xFF>", code="bad_vocabulary") from error


def _byte_alphabet() -> dict[str, bytes]:
    """GPT-2's printable character for each byte: itself where it prints, otherwise the next one from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(256) if byte not in printable)
    return {chr(byte): bytes([byte]) for byte in printable} | {chr(0x100 + n): bytes([byte]) for n, byte in enumerate(others)}


def _pre_name(header: Header) -> str:
    name = _text(header, "pre") or "default"
    name = _ALIASES.get(name, name)
    if name not in _SPLITS:
        raise NotModelled(
            f"the file splits text into words by the rule {name[:40]!r}, which kvcli does not know",
            hint="it knows " + ", ".join(sorted({*_SPLITS, *_ALIASES})),
            code="unknown_tokenizer",
        )
    return name


def _tokens(header: Header) -> list[str]:
    key = "tokenizer.ggml.tokens"
    tokens = header.strings(key) if key in header.metadata else []
    if not tokens:
        raise BadInput(
            "the file has no vocabulary (tokenizer.ggml.tokens)", hint="use a GGUF with its tokenizer inside", code="no_vocabulary"
        )
    return tokens


def _token_types(header: Header, count: int) -> list[int]:
    key = "tokenizer.ggml.token_type"
    if key not in header.metadata:
        return [1] * count
    types = [int(type_) for type_ in header.numbers(key)]
    if len(types) != count:
        raise BadInput(f"the file has {count:,} tokens but {len(types):,} token types", code="bad_vocabulary")
    return types


def _text(header: Header, name: str) -> str:
    key = "tokenizer.chat_template" if name == "chat_template" else f"tokenizer.ggml.{name}"
    value = header.metadata.get(key, "")
    # A long text is not kept in the metadata; it is read as an array of one.
    return value if isinstance(value, str) else "".join(header.strings(key)[:1])


def _flag(header: Header, name: str, default: bool) -> bool:
    value = header.metadata.get(f"tokenizer.ggml.{name}", default)
    if not isinstance(value, bool):
        raise BadInput(f"the file's tokenizer.ggml.{name} is {str(value)[:40]!r}, not true or false", code="bad_vocabulary")
    return value


def _token_id(header: Header, name: str, vocab_size: int) -> int | None:
    value = header.metadata.get(f"tokenizer.ggml.{name}")
    if value is None:
        return None
    if not isinstance(value, int) or not 0 <= value < vocab_size:
        raise BadInput(
            f"the file's tokenizer.ggml.{name} is {str(value)[:40]!r}, not one of its {vocab_size:,} tokens", code="bad_vocabulary"
        )
    return value
