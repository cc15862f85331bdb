"""The slow half, packages on a clean Debian root, runs only where packaging/test-packages asks for it."""

from __future__ import annotations

import os

collect_ignore = [] if os.environ.get("SELASTIC_TEST_PACKAGES") else ["test_packages.py"]
