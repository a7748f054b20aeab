"""Pages without a build step: a template with its styles and scripts inlined, and its Content-Security-Policy.

Guarantees:
- the page loads nothing
- only the template's own styles and scripts run, whatever the data hold
- it connects only to what the caller allows
- data are embedded as JSON that no parser takes for markup
"""

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
POLICY_PLACE, DATA_PLACE = "<!-- policy -->", "<!-- data -->"
LINK = re.compile(r'<link rel="stylesheet" href="([\w.]+)" ?/?>')
SCRIPT = re.compile(r'<script src="([\w.]+)"></script>')
INLINE = re.compile(r"<(style|script)>(.*?)</\1>", re.DOTALL)
# What could end a script element, what old parsers take for a line end, and lone surrogates.
UNSAFE = re.compile("[<>&\u2028\u2029\ud800-\udfff]")


def load(name: str, connect: str = "'none'") -> tuple[str, str]:
    """(page, policy) of a template in pages/; `connect` is the policy's connect-src."""
    page = LINK.sub(lambda link: f"<style>\n{_read(link[1])}</style>", _read(name))
    page = SCRIPT.sub(lambda script: f"<script>\n{_read(script[1])}</script>", page)
    sources: dict[str, list[str]] = {"style": [], "script": []}
    for kind, text in INLINE.findall(page):
        sources[kind].append(f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'")
    policy = (
        f"default-src 'none'; style-src {' '.join(sources['style'])}; script-src {' '.join(sources['script'])}; "
        f"img-src data:; connect-src {connect}; base-uri 'none'; form-action 'none'"
    )
    meta = f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    return page.replace(POLICY_PLACE, meta), policy


def _read(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def data(identity: str, value: Any) -> str:
    """A script element that holds `value` as JSON; a number that JSON lacks (NaN) becomes text."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError:
        return data(identity, json.loads(json.dumps(value), parse_constant=str))
    text = UNSAFE.sub(lambda unsafe: f"\\u{ord(unsafe[0]):04x}", text)
    return f'<script type="application/json" id="{identity}">{text}</script>\n'
