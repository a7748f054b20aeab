"""Pages without a build step: a template with its stylesheets and scripts put into it, and the policy that shuts it in.

Guarantees: the page loads nothing; by its Content-Security-Policy only the styles and scripts of
the template run, whatever stands in the data, and it may call only what the caller allows.
Data goes in as JSON that no parser takes for markup.
"""

import base64
import hashlib
import json
import re
from pathlib import Path

FOLDER = Path(__file__).parent
POLICY_PLACE, DATA_PLACE = "<!-- policy -->", "<!-- data -->"
LINK = re.compile(r'<link rel="stylesheet" href="([\w.]+)" ?/?>')
SCRIPT = re.compile(r'<script src="([\w.]+)"></script>')
INLINE = re.compile(r"<(style|script)>(.*?)</\1>", re.DOTALL)
# Escaped in JSON: what ends a script element, what old parsers take for a line's end, half a surrogate pair.
UNSAFE = re.compile("[<>&\u2028\u2029\ud800-\udfff]")


def load(name, connect="'none'"):
    """(page, policy) of a template in pages/; `connect` is the policy's connect-src."""
    page = (FOLDER / name).read_text(encoding="utf-8")
    page = LINK.sub(lambda found: f"<style>\n{_part(found[1])}</style>", page)
    page = SCRIPT.sub(lambda found: f"<script>\n{_part(found[1])}</script>", page)
    sources = {"style": [], "script": []}
    for kind, text in INLINE.findall(page):
        sources[kind].append(f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'")
    policy = (
        f"default-src 'none'; style-src {' '.join(sources['style'])}; script-src {' '.join(sources['script'])}; "
        f"img-src data:; connect-src {connect}; base-uri 'none'; form-action 'none'"
    )
    meta = f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    return page.replace(POLICY_PLACE, meta), policy


def _part(name):
    return (FOLDER / name).read_text(encoding="utf-8")


def data(identity, value):
    """A script element that holds `value` as JSON; what JSON cannot say (NaN) becomes text."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError:
        return data(identity, json.loads(json.dumps(value), parse_constant=str))
    text = UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    return f'<script type="application/json" id="{identity}">{text}</script>\n'
