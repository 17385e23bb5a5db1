"""Launches by hand: each word has a place of its own, so that a test sees which word a setting points at."""

import shlex

from kvcli.check.engines.read import deployment_of
from kvcli.check.launch import GpuRequest, Launch
from kvcli.check.nodes import Place, Word


def word(text, line=1, column=1, file="deploy.yaml"):
    return Word(text, Place(file, line, column), "$(" not in text and "${" not in text)


def words_of(command):
    """Word n stands at line 10 + n."""
    return tuple(word(text, 10 + number) for number, text in enumerate(shlex.split(command)))


def launch(command="", image=None, env=None, files=None, gpus=None, model=None, engine=None):
    return Launch(
        name="chat",
        container="server",
        place=Place("deploy.yaml", 1),
        image=word(image, 2) if image else None,
        words=words_of(command),
        environment={name: word(text, 100 + number) for number, (name, text) in enumerate((env or {}).items())},
        files={
            path: tuple(word(line, 200 + number, file="config.yaml") for number, line in enumerate(text.splitlines()))
            for path, text in (files or {}).items()
        },
        model=word(model, 3) if model else None,
        engine=word(engine, 4) if engine else None,
        gpus=GpuRequest(gpus, Place("deploy.yaml", 5)) if gpus else None,
    )


def read(command="", **others):
    return deployment_of(launch(command, **others))


def values(deployment):
    """What was set by somebody, defaults left out."""
    return {key: setting.value for key, setting in deployment.settings.items() if not setting.default}


def codes(deployment, matters=None):
    return [problem.code for problem in deployment.problems if matters in (None, problem.matters)]
