"""The page ``/docs``: every request with its fields, and a form to try it.

The page needs no network but the server, and says nothing of its models, so that it needs no key;
the requests that it sends do.
"""

from __future__ import annotations

import json
from html import escape
from importlib.resources import files
from typing import Any

from ..common.content_policy import content_policy
from ..common.strict_json import JsonObject


def docs_page(openapi: JsonObject) -> str:
    """Make the page of an OpenAPI document."""
    style, script = (
        files(__package__).joinpath("template", name).read_text(encoding="utf-8")
        for name in ("docs.css", "docs.js")
    )
    title = escape(f"{openapi['info']['title']} {openapi['info']['version']}")
    operations = [
        _operation(path, method, operation, openapi)
        for path, methods in openapi["paths"].items()
        for method, operation in methods.items()
    ]
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{content_policy(style, script, "'self'")}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<h1>{title}</h1>
<p>{escape(openapi["info"]["description"])} Errors are those of OpenAI's API; the document for tools
is <code>/openapi.json</code>.</p>
<label>API key, if the server asks for one
<input id="key" type="password" autocomplete="off"></label>
{"".join(operations)}
<script>{script}</script>
</body>
</html>
"""


def _operation(path: str, method: str, operation: JsonObject, openapi: JsonObject) -> str:
    content = operation.get("requestBody", {}).get("content", {})
    named = content.get("application/json", {}).get("schema", {}).get("$ref")
    fields = body = ""
    if named:
        request = openapi["components"]["schemas"][named.rpartition("/")[2]]
        fields = _fields(request, openapi)
        example = json.dumps(request["examples"][0], indent=2)
        rows = example.count("\n") + 1
        body = (
            f'<label>Body<textarea rows="{rows}" spellcheck="false">{escape(example)}</textarea>'
            "</label>"
        )
    return f"""<section>
<h2><code>{method.upper()} {escape(path)}</code></h2>
<p>{escape(operation["description"])}</p>
{fields}
<form data-method="{method.upper()}" data-path="{escape(path)}">
{body}
<button>Send</button>
<pre aria-live="polite"></pre>
</form>
</section>
"""


def _fields(request: JsonObject, openapi: JsonObject) -> str:
    needed = request.get("required", ())
    rows = [
        f"<tr><td><code>{escape(name)}</code></td><td>{escape(_type(field, openapi))}</td>"
        f"<td>{'required' if name in needed else escape(json.dumps(field.get('default')))}</td>"
        f"<td>{escape(field.get('description', ''))}</td></tr>"
        for name, field in request["properties"].items()
    ]
    heads = "".join(f"<th>{head}</th>" for head in ("field", "type", "default", "meaning"))
    return f'<div class="wide"><table><tr>{heads}</tr>{"".join(rows)}</table></div>'


def _type(field: JsonObject, openapi: JsonObject) -> str:
    """What a field takes, in words."""
    if "anyOf" in field:
        types: list[str] = [_type(each, openapi) for each in field["anyOf"]]
        return " or ".join(dict.fromkeys(types))
    if "enum" in field:
        return " or ".join(map(json.dumps, field["enum"]))
    if "$ref" in field:
        of: dict[str, Any] = openapi["components"]["schemas"][field["$ref"].rpartition("/")[2]]
        return f"object with {', '.join(of['properties'])}"
    if field.get("type") == "array":
        return f"list of {_type(field['items'], openapi)}"
    return str(field.get("type", "anything"))
