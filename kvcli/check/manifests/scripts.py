"""Command files: shell scripts, Dockerfiles, and a command line written in the capacity file."""

from __future__ import annotations

import json
import re
from pathlib import PurePosixPath

from kvcli.check.launch import Launch, Problem
from kvcli.check.manifests.fileset import Script, rendered
from kvcli.check.manifests.pods import with_programs
from kvcli.check.nodes import Place, Spots, Word, place_at, spots_between
from kvcli.check.shell.program import find_in_script, find_programs
from kvcli.check.shell.script import MAX_CHARACTERS

_CONTINUED = re.compile(r"\\[ \t]*\n")


def read_script(script: Script) -> list[Launch]:
    """The engines that a script starts, called `command/1`, `command/2`, ... in order."""
    text = rendered(script.text)
    source = text.place
    name = PurePosixPath(script.file).name.lower()
    if name.startswith(("dockerfile", "containerfile")) or name.endswith(".dockerfile"):
        return _dockerfile(script)
    programs, problems = find_in_script(text, {})
    result: list[Launch] = []
    # an image's own command has no words, and is told by variables
    programs = tuple(each for each in programs if each.words or each.run is not None)
    for index, program in enumerate(programs, start=1):
        place = program.words[0].place if program.words else program.run.image.place if program.run and program.run.image else source
        own = _problems(problems, program.run)
        if program.guarded and not all(each.guarded for each in programs):
            own = (*own, Problem("conditional_beside", "it starts only under a condition of the script", place))
        result += with_programs(Launch(f"command/{index}", "", place, problems=own), [program])
    return result


def launch_of_command(text: str, place: Place, spots: Spots = ()) -> Launch:
    """The launch of a command line as a capacity file has it; of several commands the first that starts an engine."""
    programs, problems = find_in_script(Word(text, place, True, spots), {})
    launch = Launch("command/1", "", place, problems=problems)
    found = with_programs(launch, programs)[0]
    return found._replace(problems=_problems(problems, programs[0].run if programs else None))


def _problems(problems: tuple[Problem, ...], run: object) -> tuple[Problem, ...]:
    files = getattr(run, "env_files", ())
    return (
        *problems,
        *(
            Problem("environment_not_in_files", f"the env file {word.text} is not read, so what it sets is not known", word.place)
            for word in files
        ),
    )


def _dockerfile(script: Script) -> list[Launch]:
    """ENTRYPOINT and CMD of the last stage, with the variables of ENV and the defaults of ARG."""
    words: dict[str, list[Word]] = {}
    shell_form: dict[str, Word] = {}
    environment: dict[str, Word] = {}
    image: Word | None = None
    source = script.text
    if len(source.text) > MAX_CHARACTERS:
        message = f"a file of {len(source.text)} characters is not read as a Dockerfile, at most {MAX_CHARACTERS} are"
        return [Launch("command/1", "", source.place, problems=(Problem("script_not_followed", message, source.place),))]
    for match in re.finditer(r"(?:\\[ \t]*\n|\\[^\n]|[^\\\n])+", source.text):
        line = match.group()
        found = re.match(r"\s*([A-Za-z]+)\s+", line)
        if found is None:
            continue
        start = match.start() + found.end()
        rest = line[found.end() :]
        spots: Spots = tuple((offset - start, place) for offset, place in spots_between(source.spots, start, match.end()))
        word = Word(rest, place_at(source.spots, source.place, start), True, spots)
        key = found.group(1).upper()
        if key == "FROM":
            image = word._replace(text=next((each for each in rest.split() if not each.startswith("--")), rest), spots=())
            words, shell_form, environment = {}, {}, {}
        elif key in ("ENV", "ARG"):
            pairs = re.findall(r"([A-Za-z_]\w*)=(\"[^\"]*\"|'[^']*'|\S*)", _CONTINUED.sub(" ", rest))
            single = rest.split(None, 1)
            if key == "ENV" and "=" not in single[0] and len(single) == 2:
                pairs = [(single[0], single[1])]
            environment.update((name, word._replace(text=value.strip("\"'"), spots=())) for name, value in pairs)
        elif key in ("ENTRYPOINT", "CMD"):
            try:
                items = json.loads(_CONTINUED.sub(" ", rest)) if rest.startswith("[") else None
            except (ValueError, RecursionError):
                items = None
            shell_form.pop(key, None)
            words.pop(key, None)
            if isinstance(items, list):
                words[key] = [_item(str(item), word) for item in items]
            else:
                shell_form[key] = word
            if key == "ENTRYPOINT":
                words.pop("CMD", None)
    if "ENTRYPOINT" in shell_form or ("CMD" in shell_form and "ENTRYPOINT" not in words):
        programs, problems = find_in_script(shell_form.get("ENTRYPOINT", shell_form.get("CMD", source)), environment)
    else:
        programs, problems = find_programs([*words.get("ENTRYPOINT", []), *words.get("CMD", [])], environment)
    programs = tuple(program for program in programs if program.words)
    place = programs[0].words[0].place if programs else source.place
    return with_programs(Launch("command/1", "", place, image=image, problems=problems), programs) if programs else []


def _item(text: str, word: Word) -> Word:
    """An entry of a JSON form at the place where it stands."""
    offset = word.text.find(json.dumps(text)[1:-1])
    return Word(text, place_at(word.spots, word.place, max(offset, 0)))
