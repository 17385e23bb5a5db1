"""A model file's own chat template, rendered as if it were hostile, which a downloaded one may be.

Jinja's sandbox keeps a template from the interpreter's internals, but not from looping for hours or doubling a string
until the memory is gone. So the template is rendered in a process of its own that is given a few seconds and a bounded
memory, and is ended when it takes more.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from kvcli.errors import BadInput, CannotRunHere

MAX_OUTPUT_CHARS = 2**20
MAX_SECONDS = 5.0
MAX_MEMORY_BYTES = 2**30

# The parent's module path goes along, so that the child finds the same kvcli and jinja2 wherever they were started from.
_CHILD = "import json, sys; job = json.load(sys.stdin); sys.path[:] = job.pop('path'); from kvcli.runtime.chat import _child; _child(job)"


def render(
    template: str,
    messages: list[dict[str, str]],
    bos_token: str,
    eos_token: str,
    add_generation_prompt: bool = True,
    now: datetime | None = None,
) -> str:
    """The prompt that the template makes of the messages. Raises BadInput (code "chat_template") for every failure of the template."""
    job = {
        "path": sys.path,
        "template": template,
        "messages": messages,
        "bos_token": bos_token,
        "eos_token": eos_token,
        "add_generation_prompt": add_generation_prompt,
        "now": (now or datetime.now()).isoformat(),
    }
    command = [sys.executable, "-I", "-B", "-c", _CHILD]
    try:
        done = subprocess.run(command, input=json.dumps(job).encode(), capture_output=True, timeout=MAX_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise _failure(f"did not finish within {MAX_SECONDS:g} seconds") from error
    except OSError as error:
        raise CannotRunHere(
            f"no process could be started for the model's chat template: {error.strerror}", hint="use --raw to send the prompt without it"
        ) from error
    try:
        answer = json.loads(done.stdout)
    except ValueError as error:  # the memory limit or a crash ended it before it could answer
        raise _failure(f"ended the process that rendered it (exit code {done.returncode})") from error
    if "text" not in answer:
        raise _failure(answer["failure"])
    return str(answer["text"])


def _failure(what: str) -> BadInput:
    # The words may be the template's own: no control characters to the terminal, and not a page of them.
    plain = "".join(char if char.isprintable() else " " for char in what)[:300]
    return BadInput(f"the model's chat template {plain}", hint="use --raw to send the prompt without a template", code="chat_template")


def _child(job: dict[str, Any]) -> None:
    """The other process: one answer on standard output."""
    _limit_memory()
    try:
        answer = {"text": render_here(**job)}
    except BadInput as error:
        answer = {"failure": error.message}
    sys.stdout.write(json.dumps(answer))


def _limit_memory() -> None:
    try:
        import resource
    except ImportError:  # Windows has no such limit; the time limit remains
        return
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = MAX_MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(MAX_MEMORY_BYTES, hard)
    # macOS knows the limit but may refuse to set it.
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


def render_here(
    template: str, messages: list[dict[str, str]], bos_token: str, eos_token: str, add_generation_prompt: bool, now: str
) -> str:
    """Renders in this process, without a limit on time or memory. The message of its BadInput says only what went wrong."""
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    env.filters["tojson"] = _tojson
    env.globals["raise_exception"] = _raise_exception
    env.globals["strftime_now"] = datetime.fromisoformat(now).strftime
    parts: list[str] = []
    length = 0
    try:
        pieces = env.from_string(template).generate(
            messages=messages, bos_token=bos_token, eos_token=eos_token, add_generation_prompt=add_generation_prompt
        )
        for piece in pieces:
            length += len(piece)
            if length > MAX_OUTPUT_CHARS:
                raise BadInput(f"makes more than {MAX_OUTPUT_CHARS:,} characters")
            parts.append(piece)
    except BadInput:
        raise
    except _Refused as error:
        raise BadInput(f"refuses these messages: {error.message}") from error
    except jinja2.TemplateSyntaxError as error:
        raise BadInput(f"is not valid Jinja in line {error.lineno}: {error.message}") from error
    except jinja2.exceptions.SecurityError as error:
        raise BadInput(f"does what the sandbox forbids: {error.message}") from error
    except RecursionError as error:
        raise BadInput("nests too deep or calls itself without end") from error
    except MemoryError as error:
        raise BadInput("needs more memory than it is given") from error
    except Exception as error:  # a template can run into any error of Python's, and each one is the template's fault
        raise BadInput(f"failed: {type(error).__name__}: {error}") from error
    return "".join(parts)


class _Refused(jinja2.TemplateError):
    """The template itself called raise_exception."""


def _raise_exception(message: object) -> NoReturn:
    raise _Refused(str(message))


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it is; Jinja's own filter writes it for HTML, with <, >, & and ' escaped."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
