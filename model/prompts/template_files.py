"""The names of the files of templates in checkpoints and bundles, for programs that need no Jinja."""

from __future__ import annotations

CHAT_TEMPLATE = "chat_template.json"  # {"chat_template": …, "special_tokens": {…}}
TRANSLATION_TEMPLATE = "translation_template.json"
TEMPLATES = (CHAT_TEMPLATE, TRANSLATION_TEMPLATE)
