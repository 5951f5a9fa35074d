"""The file is read as TOML; equality is of values and of their types."""

import tomllib
from pathlib import Path

EXPECTED = {
    "version": 2,
    "name": "relay",
    "debug": True,
    "motd": "Gr\u00fc\u00dfe\nvom Relais",
    "server": {"host": "0.0.0.0", "port": 8080, "timeout_s": 1.5},
    "database": {"host": "db1", "port": 5432, "password": 's3cr"et\\x'},
    "features": ["beta", "export", "search"],
    "limits": {"upload_bytes": 20971520, "page_bytes": 524288, "log_bytes": 1073741824},
    "hosts": [
        {"name": "a.example.org", "weight": 3, "enabled": True},
        {"name": "b.example.org", "weight": 1, "enabled": False},
        {"name": "c.example.org", "weight": 1, "enabled": True},
    ],
}


def typed(value: object) -> object:
    """The value with the names of all its types, since True equals 1 and 1 equals 1.0."""
    if isinstance(value, dict):
        return {key: typed(item) for key, item in value.items()}
    if isinstance(value, list):
        return [typed(item) for item in value]
    return type(value).__name__, value


def test_the_file_has_the_values_and_types_of_the_guide() -> None:
    assert typed(tomllib.loads(Path("/work/relay.toml").read_text("utf-8"))) == typed(EXPECTED)
