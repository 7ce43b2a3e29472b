"""Masks in the file formats of other tools, and prompts.

| module | format | keeps |
|:--|:--|:--|
| `png` | binary and index PNG | every pixel |
| `run_lengths` | COCO run lengths, compressed or not | every pixel |
| `brush` | run lengths of Label Studio's brush | every pixel |
| `polygons` | outlines; those of COCO lose holes | every pixel without tolerance |

`prompts` parses clicks, boxes and strokes, whoever sends them.

Masks are bool of shape `(H, W)`, or the pixels of a box (`regions`): what an object costs follows
from its own size, not from that of the photograph. Coordinates of outlines are `(x, y)` on the
borders of pixels: the pixel in column `c` and row `r` covers `c <= x < c + 1` and
`r <= y < r + 1`.
"""

MASKS, OVERLAYS, COCO = "masks", "overlays", "coco"
# results of a prediction: a PNG per object (or class map), one COCO JSON, pictures
FORMATS = (MASKS, COCO, OVERLAYS)
