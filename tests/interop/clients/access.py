"""Users, their secrets and rules, of the guarded server."""

import json
from pathlib import Path

SECRET = "secret of the service"

CREDENTIALS = {
    "right": ("service", SECRET),
    "wrong-secret": ("service", "not the secret"),
    "wrong-key": ("nobody", SECRET),
    "missing": ("", ""),
    "producer": ("producer", SECRET),
}

RULES = {
    "service": [{"topic": "Other*", "allow": ["admin"]}, {"group": "other*", "allow": ["admin"]}],
    "producer": [{"topic": "Other*", "allow": ["publish", "subscribe", "admin"]}],
}


def write_users(file: Path) -> Path:
    """Write the file of users; returns it."""
    users = [{"access_key": key, "secret": SECRET, "rules": rules} for key, rules in RULES.items()]
    file.write_text(json.dumps({"users": users}))
    return file
