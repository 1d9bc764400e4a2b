"""The front end's files: as the server sends them, and as one file that opens from disk."""

from __future__ import annotations

import base64
import functools
import gzip
import hashlib
import json
import re
from collections.abc import Mapping
from importlib import resources
from typing import Any

from metaagent_x.analysis.html import escape
from metaagent_x.analysis.style import CSS

# In the order in which one file needs them: a module after those that it imports.
MODULES = (
    "dom.js", "source.js", "table.js", "start.js", "step.js", "graph.js", "task.js", "execution.js", "call.js",
    "compare.js", "find.js", "main.js",
)  # fmt: skip
STYLE = "viewer.css"
TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html"}


@functools.cache
def file(name: str) -> tuple[str, str] | None:
    """(type, text) of a file of the front end, None if it has no such file. The style begins with the report's."""
    if name not in (*MODULES, STYLE, "index.html"):
        return None
    text = resources.files("metaagent_x.viewer").joinpath("static", name).read_text(encoding="utf-8")
    return TYPES[name[name.rindex(".") :]], CSS + text if name == STYLE else text


def single(answers: Mapping[str, Any], title: str) -> str:
    """The front end with these answers in one file that needs no server and loads nothing.

    Args:
      answers: address -> answer. title: of the page.
    """
    style, script = _text(STYLE), "".join(_as_part(_text(name)) for name in MODULES)
    data = base64.b64encode(gzip.compress(json.dumps(answers, allow_nan=False).encode(), mtime=0)).decode()
    # Only these two texts may act, whatever else the file holds.
    policy = f"default-src 'none'; img-src data:; script-src {_hash(script)}; style-src {_hash(style)}"
    block = f'<script type="application/octet-stream" id="answers">{data}</script>'
    page = _text("index.html")
    for old, new in {
        "<title>metaagent_x</title>": f"<title>{escape(title)}</title>",
        "<!-- policy -->": f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        f'<link rel="stylesheet" href="static/{STYLE}">': f"<style>{style}</style>",
        '<script type="module" src="static/main.js"></script>': f'{block}\n<script type="module">{script}</script>',
    }.items():  # fmt: skip
        assert page.count(old) == 1, f"index.html must hold {old} once"
        page = page.replace(old, new)
    return page


def _text(name: str) -> str:
    found = file(name)
    assert found is not None
    return found[1]


def _as_part(module: str) -> str:
    """A module as a part of one script: without imports, which the parts before it fulfil, and without exports."""
    return re.sub(r"^export (?!default)", "", re.sub(r"^import [^;]*;\n", "", module, flags=re.M), flags=re.M)


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
