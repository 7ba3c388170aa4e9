"""The README shows the console as it is today."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

from PIL import Image

ROOT = Path(__file__).resolve().parent.parent


def taker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("take_picture", ROOT / "docs/picture.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_readmes_picture_is_of_todays_console() -> None:
    """A change of the page or of its style makes the picture stale: `python docs/picture.py` takes it again."""
    docs = taker()
    assert "docs/images/incident.png" in (ROOT / "README.md").read_text()
    with docs.console() as (url, path), Image.open(docs.PICTURE) as picture:
        assert picture.size == (1280, 800)
        assert docs.fingerprint(url, path) == docs.fingerprint(url, path)
        assert picture.info[docs.SHOWS] == docs.fingerprint(url, path), "run `python docs/picture.py`"
