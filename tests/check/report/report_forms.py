"""Every format as one function of a report, and the schemas that outputs must meet."""

import json
from pathlib import Path

import jsonschema
import xmlschema

from kvcli import __version__
from kvcli.report.check.azure import azure
from kvcli.report.check.document import json_document
from kvcli.report.check.github import github
from kvcli.report.check.gitlab import gitlab
from kvcli.report.check.junit import junit
from kvcli.report.check.markdown import markdown
from kvcli.report.check.sarif import sarif
from kvcli.report.check.text import text

SCHEMAS = Path(__file__).resolve().parents[2] / "data" / "schemas"
FORMS = {
    "txt": lambda report: text(report, color=False),
    "color.txt": lambda report: text(report, color=True),
    "json": lambda report: json.dumps(json_document(report), indent=1, allow_nan=False) + "\n",
    "github.txt": github,
    "gitlab.json": gitlab,
    "azure.txt": azure,
    "junit.xml": junit,
    "sarif.json": sarif,
    "md": markdown,
}

SARIF = jsonschema.Draft202012Validator(
    json.loads((SCHEMAS / "sarif-2.1.0.json").read_text(encoding="utf-8")), format_checker=jsonschema.FormatChecker()
)
JUNIT = xmlschema.XMLSchema(str(SCHEMAS / "junit-10.xsd"))
LINE = {"type": "integer", "minimum": 1}
TEXT = {"type": "string"}
NUMBER = {"type": ["number", "null"], "minimum": 0}


def closed(required, **optional):
    return {"type": "object", "properties": {**required, **optional}, "required": list(required), "additionalProperties": False}


#: GitLab, "Implement a custom tool" of its page on code quality
GITLAB = jsonschema.Draft202012Validator(
    {
        "type": "array",
        "items": closed(
            {
                "description": {"type": "string", "minLength": 1},
                "check_name": {"type": "string", "minLength": 1},
                "fingerprint": {"type": "string", "pattern": "^[0-9a-f]{32}$"},
                "severity": {"enum": ["info", "minor", "major", "critical", "blocker"]},
                "location": closed({"path": {"type": "string", "pattern": "^(?!\\./)"}, "lines": closed({"begin": LINE})}),
            }
        ),
    }
)
MEASURES = closed(
    {
        "memory_bytes": NUMBER,
        "usable_bytes": NUMBER,
        "sequences": NUMBER,
        "ttft_floor_s": NUMBER,
        "tpot_floor_s": NUMBER,
        "cost_per_mtok": NUMBER,
    }
)
RULE = closed(
    {
        "id": TEXT,
        "name": TEXT,
        "level": {"enum": ["error", "warning", "note", "skipped"]},
        "message": TEXT,
        "file": TEXT,
        "line": LINE,
        "column": LINE,
        "formula": TEXT,
        "fix": TEXT,
        "waiver": {"anyOf": [{"type": "null"}, closed({"reason": TEXT, "expires": TEXT})]},
        "known": {"type": "boolean"},
    }
)
DOCUMENT = jsonschema.Draft202012Validator(
    closed(
        {
            "schema_version": {"const": 1},
            "targets": {
                "type": "array",
                "items": closed(
                    {
                        "name": TEXT,
                        "device": TEXT,
                        "verdict": {"enum": ["fail", "warn", "pass"]},
                        "file": TEXT,
                        "line": LINE,
                        "rules": {"type": "array", "items": RULE},
                        "checked": {"type": "array", "items": TEXT},
                        "measures": MEASURES,
                        "before": {"anyOf": [{"type": "null"}, MEASURES]},
                        "new": {"type": "boolean"},
                        "assumed": {"type": "array", "items": TEXT},
                    }
                ),
            },
            "passed": {"type": "boolean"},
            "against": {"type": ["string", "null"]},
            "vanished": {"type": "array", "items": closed({"name": TEXT, "device": TEXT})},
        }
    )
)


def validate(form, output):
    """Raises where an output does not meet the schema of its format."""
    if form == "sarif.json":
        SARIF.validate(json.loads(output))
    elif form == "gitlab.json":
        GITLAB.validate(json.loads(output))
    elif form == "json":
        DOCUMENT.validate(json.loads(output))
    elif form == "junit.xml":
        JUNIT.validate(output)


def steady(output):
    """Without the version, which every release changes."""
    return output.replace(f'"{__version__}"', '"VERSION"')
