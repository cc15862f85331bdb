"""Needs a browser, and runs only where `make test-browser` asks for it."""

from __future__ import annotations

import os

collect_ignore = [] if os.environ.get("SELASTIC_TEST_BROWSER") else ["test_page.py"]
