"""Chat templates: what a good one gives, and that a bad or hostile one is an error and nothing more."""

from __future__ import annotations

import sys
from datetime import datetime

import pytest

from kvcli.errors import BadInput
from kvcli.runtime import chat

USER = [{"role": "user", "content": "Why is the sky blue?"}]
WITH_SYSTEM = [
    {"role": "system", "content": "Be brief & <kind>."},
    *USER,
    {"role": "assistant", "content": "Scattering."},
    {"role": "user", "content": "Merci, à bientôt 😀"},
]
SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def rendered(template: str, messages: list[dict[str, str]] = USER) -> str:
    return chat.render(template, messages, "<s>", "</s>", now=datetime(2024, 2, 29, 12, 0))


def failure(template: str) -> BadInput:
    with pytest.raises(BadInput) as caught:
        rendered(template)
    assert caught.value.code == "chat_template"
    assert "--raw" in caught.value.hint
    assert caught.value.message.startswith("the model's chat template ")
    return caught.value


def test_smollm2_template_gives_the_prompt_the_model_was_trained_on() -> None:
    assert rendered(SMOLLM2) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nWhy is the sky blue?<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("generation", [True, False])
@pytest.mark.parametrize("messages", [USER, WITH_SYSTEM])
def test_agrees_with_transformers(messages: list[dict[str, str]], generation: bool) -> None:
    utils = pytest.importorskip("transformers.utils.chat_template_utils", reason="transformers is not installed: nothing to compare with")
    theirs, _ = utils.render_jinja_template([messages], chat_template=SMOLLM2, add_generation_prompt=generation)
    assert [chat.render(SMOLLM2, messages, "", "", generation)] == theirs


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ bos_token }}|{{ eos_token }}|{{ add_generation_prompt }}", "<s>|</s>|True"),
        ("{{ {'a': '<é>'} | tojson }}", '{"a": "<é>"}'),
        ("{{ {'b': 1, 'a': [2]} | tojson(separators=(',', ':'), sort_keys=true) }}", '{"a":[2],"b":1}'),
        ("{{ {'a': 1} | tojson(indent=2) }}", '{\n  "a": 1\n}'),
        ("{{ strftime_now('%d %b %Y') }}", "29 Feb 2024"),
        ("{% for i in range(9) %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}", "012"),
        ("{% if true %}\n  {% if true %}\nx\n  {% endif %}\n{% endif %}\n", "x\n"),
        ("{{ messages[0].tool_calls }}|{{ nothing }}", "|"),
    ],
    ids=["variables", "json", "json-options", "json-indent", "date", "break", "trimmed-blocks", "missing-is-empty"],
)
def test_what_templates_may_use(template: str, text: str) -> None:
    assert rendered(template) == text


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{% if", "not valid Jinja in line 1"),
        ("\n\n{% endfor %}", "not valid Jinja in line 3"),
        ("{{ nothing.at_all }}", "UndefinedError"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{% include '/etc/passwd' %}", "failed"),
        ("{{ raise_exception('roles must alternate') }}", "refuses these messages: roles must alternate"),
        ("{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}", "without end"),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "nests too deep"),
    ],
)
def test_a_template_that_fails_is_bad_input(template: str, words: str) -> None:
    assert words in failure(template).message


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ '{0.__class__.__mro__}'.format(1) }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='system') }}",
    ],
)
def test_the_sandbox_refuses(template: str) -> None:
    assert "sandbox forbids" in failure(template).message


@pytest.mark.parametrize(
    "template", ["{{ messages | attr('__class__') }}", "{{ raise_exception.__globals__ }}", "{{ messages.__class__ }}"]
)
def test_internals_print_as_nothing(template: str) -> None:
    assert rendered(template) == ""


def test_no_code_is_run(tmp_path_factory: pytest.TempPathFactory) -> None:
    target = tmp_path_factory.mktemp("hostile") / "written"
    failure("{{ cycler.__init__.__globals__.os.system('touch " + str(target) + "') }}")
    failure("{{ ''.__class__.__base__.__subclasses__()[0]('" + str(target) + "') }}")
    assert not target.exists()


def test_range_is_bounded() -> None:
    assert "Range too big" in failure("{% for i in range(10**9) %}x{% endfor %}").message


def test_output_is_bounded_to_the_character() -> None:
    most = "{% for i in range(1024) %}{{ 'x' * 1024 }}{% endfor %}"
    assert len(rendered(most)) == chat.MAX_OUTPUT_CHARS == 1024 * 1024
    assert "1,048,576 characters" in failure(most + "x").message


def test_a_loop_without_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "MAX_SECONDS", 1.0)
    loops = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    assert "did not finish within 1 seconds" in failure(loops).message


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the memory limit is only certain on Linux")
@pytest.mark.parametrize(
    "template",
    ["{{ 'a' * 10**10 }}", "{% set ns = namespace(s='aa') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}"],
    ids=["product", "doubling"],
)
def test_memory_is_bounded(template: str) -> None:
    failure(template)


def test_a_message_cannot_reach_the_terminal_as_control_characters() -> None:
    message = failure(r"{{ raise_exception('a\x1b[2Jb\n' ~ 'c' * 5000) }}").message
    assert message.isprintable()
    assert len(message) < 400
