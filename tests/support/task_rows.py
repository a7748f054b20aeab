"""Where task rows and recorded runs may lie beside the clone; tests that need them skip where they do not."""

from pathlib import Path

SHARED_DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
