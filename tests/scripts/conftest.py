"""Makes the packages of scripts/ importable in the tests of this folder and of tests/demo."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
