"""Readers of the log formats as the platforms' runners read them, and of Markdown as CommonMark with tables."""

import re

from markdown_it import MarkdownIt

#: in the order in which the runners decode, the percent sign last
GITHUB_DATA = (("%0D", "\r"), ("%0A", "\n"), ("%25", "%"))
GITHUB_PROPERTY = (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ","), ("%25", "%"))
AZURE = (("%3B", ";"), ("%0D", "\r"), ("%0A", "\n"), ("%5D", "]"), ("%AZP25", "%"))


def decode(text, mapping):
    for token, char in mapping:
        text = text.replace(token, char)
    return text


def github_command(line):
    """(command, properties, data) of a line, None where the runner takes it for text. A line of text must hold no older command."""
    line = line.lstrip()
    if not line.startswith("::") or (end := line.find("::", 2)) < 0:
        assert "##[" not in line
        return None
    command, _, rest = line[2:end].partition(" ")
    pairs = [part.split("=", 1) for part in rest.split(",") if part]
    return command, {key: decode(value, GITHUB_PROPERTY) for key, value in pairs}, decode(line[end + 2 :], GITHUB_DATA)


def azure_command(line):
    """The same for the agent, which finds its command anywhere in a line."""
    start = line.lower().find("##vso[")
    if start < 0:
        assert "##[" not in line
        return None
    end = line.index("]", start)
    command, _, rest = line[start + 6 : end].partition(" ")
    pairs = [part.split("=", 1) for part in rest.split(";") if part]
    return command, {key: decode(value, AZURE) for key, value in pairs}, decode(line[end + 1 :], AZURE)


def markdown_tokens(text):
    """All inline tokens, flat; raw HTML shows as `html_inline` or `html_block`."""
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    flat = []
    for token in parser.parse(text):
        flat.append(token)
        flat += token.children or []
    return flat


def table_cells(text):
    """Rows of the first table, cells as the text that is shown."""
    rows, inside = [], False
    for token in MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text):
        if token.type == "tr_open":
            rows.append([])
        inside = inside or token.type in ("td_open", "th_open")
        if token.type == "inline" and inside:
            rows[-1].append("".join(" " if child.type == "html_inline" else child.content for child in token.children))
            inside = False
    return rows


def squeezed(text):
    return re.sub(r"\s+", " ", text).strip()
