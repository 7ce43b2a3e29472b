"""What web pages with a photograph to click on share.

The annotation page, the notebook's widget and exported pages use the same canvas.
"""

from pathlib import Path

SHARED = Path(__file__).parent
"""Folder of `canvas.js`, `page.css` and `icon.svg`."""
