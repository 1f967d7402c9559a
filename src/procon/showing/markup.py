"""What all self-contained HTML pages share: text that is safe in them, and their head."""

import base64
import hashlib
import html

from procon.names import show_text


def safe_text(text: str) -> str:
    """Text that may hold names of files, safe in markup and in any encoding."""
    return html.escape(show_text(text))


def page_head(title: str, style: str, script: str = "") -> str:
    """Everything before the body; a policy allows this one script and nothing from elsewhere."""
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    if script:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        policy += f"; script-src 'sha256-{digest}'"
        script = f'<script type="module">{script}</script>\n'
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{safe_text(title)}</title>\n<style>\n{style}</style>\n{script}</head>\n"
    )
