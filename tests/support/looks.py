"""What any page of ours must be for a reader, on a phone and on a wide window; looks.js finds what is wrong."""

from pathlib import Path

WIDTHS = (360, 1400)
CHECKS = Path(__file__).with_suffix(".js").read_text(encoding="utf-8")


def assert_fits(page):
    """No horizontal scroll of the page, readable contrast, controls with names, a quiet console."""
    faults = page.run(CHECKS)
    assert faults == {"overflow": [], "contrast": [], "controls": []}, faults
    assert page.errors == [], page.errors
