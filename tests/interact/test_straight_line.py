"""What the loop computes for one object, as a program without states and batches."""

import numpy as np
import torch

from probseg import geometry
from probseg.geometry import View, Zoom, box_size, keep_clicks, scale_to
from probseg.interact import ZOOMS, InteractionLoop, OneStep, begin, image_tensor
from probseg.interact.mask import ProbabilityMap
from probseg.interact.photograph import resize_aligned
from probseg.types import Click, Prompts
from support.fakes import draw_scene
from support.rows import each
from support.toy_models import shades

LOOK = Zoom(target=48, min_side=40, first=(1.0, 0.5, 0.25), look=0.5, look_target=30)
CLICKS = [Click(80, 60), Click(100, 66), Click(102, 68, False), Click(30, 20), Click(169, 5, False)]


@OneStep
def remembers(image, prompts):
    """Logits that also hang on the answer before."""
    return shades.predict(image, prompts) + 3 * prompts.previous - 1.5


def answered(image, view, clicks, before, flip):
    """Return the probabilities of a view at all pixels of its box, in which the clicks hold."""
    (x0, y0, x1, y1), size = view
    shown = resize_aligned(image[:, y0:y1, x0:x1].float() / 255, size)[None]
    previous = resize_aligned(torch.tensor(before[None, y0:y1, x0:x1]), size)[None]
    places = geometry.to_samples(np.array([click[:2] for click in clicks], float), view)
    points = torch.tensor(places, dtype=torch.float32)[None]
    labels = torch.tensor([[int(click.positive) for click in clicks]])
    box = torch.full((1, 4), torch.nan)
    logits = remembers.predict(shown, Prompts(points, labels, box, previous))
    if flip:
        points = torch.stack([size[1] - 1 - points[..., 0], points[..., 1]], dim=-1)
        mirrored = Prompts(points, labels, box, previous.flip(-1))
        logits = (logits + remembers.predict(shown.flip(-1), mirrored).flip(-1)) / 2
    return keep_clicks(
        resize_aligned(logits[0].sigmoid(), box_size(view.box))[0].numpy(), view.box, clicks
    )


def in_image(values, box, size):
    """Return probabilities of a box as those of the image, of which nothing else is object."""
    whole = np.zeros(size, np.float32)
    whole[box[1] : box[3], box[0] : box[2]] = values
    return whole


def share(first, end, length, rim):
    """Return the share of a look, line by line, that is in all lines from the first to the last."""
    at = np.arange(length)
    rising = np.ones(length) if first == 0 else (at - first + 1) / (rim + 1)
    falling = np.ones(length) if end == length else (end - at) / (rim + 1)
    return np.minimum(rising, falling).clip(0, 1).astype(np.float32)


def click_by_click(image, clicks, zoom, flip):
    """Yield the probability of the object after each click."""
    size = height, width = image.shape[1:]
    whole, probability = View((0, 0, width, height), size), np.zeros(size, np.float32)
    window = look = None
    for count in range(1, len(clicks) + 1):
        seen, windows = clicks[:count], [None]
        if zoom is not None and count == 1:
            windows = geometry.first_windows(zoom, seen[0], size)
        elif zoom is not None:
            windows = [
                geometry.next_window(zoom, window, ProbabilityMap.from_array(probability), seen)
            ]
        views = [View(w, scale_to(box_size(w), zoom.target)) if w else whole for w in windows]
        tried = [answered(image, view, seen, probability, flip) for view in views]
        maps = [
            ProbabilityMap(torch.tensor(v), view.box, size)
            for v, view in zip(tried, views, strict=True)
        ]
        sure = [geometry.expected_iou(one) * geometry.cut_factor(one) for one in maps]
        best = int(np.argmax(sure))
        (box, _), window = views[best], windows[best]
        probability = in_image(tried[best], box, size)
        if zoom is not None and zoom.look and count == 1:
            values = answered(image, views[best], seen, probability, flip)
            probability = in_image(values, box, size)
            again = ProbabilityMap(torch.tensor(values), box, size)
            around = geometry.fitting_window(zoom, again, seen)
            view = View(around, scale_to(box_size(around), zoom.target))
            values = answered(image, view, seen, probability, flip)
            closer = ProbabilityMap(torch.tensor(values), around, size)
            sure = [
                geometry.expected_iou(one) * geometry.cut_factor(one) for one in (again, closer)
            ]
            probability = in_image(values, around, size) if sure[1] > sure[0] else probability
            window = around
        elif zoom is not None and zoom.look:
            look = x0, y0, x1, y1 = geometry.look_window(zoom, box, seen[-1], size, look)
            view = View(look, geometry.look_size(zoom, look))
            closer = in_image(answered(image, view, seen, probability, flip), look, size)
            rim = max(x1 - x0, y1 - y0) // 8
            part = share(y0, y1, height, rim)[:, None] * share(x0, x1, width, rim)
            probability = part * closer + (1 - part) * probability
            box = (*map(min, box[:2], look[:2]), *map(max, box[2:], look[2:]))
            values = probability[box[1] : box[3], box[0] : box[2]]
            probability = in_image(keep_clicks(values, box, seen), box, size)
        yield probability, window


@each("zoom", [None, ZOOMS["fixed"], LOOK])
@each("flip", [False, True])
def test_the_loop_computes_what_the_program_does(zoom, flip):
    image = image_tensor(draw_scene(130, 170)[0])
    loop = InteractionLoop(remembers, zoom=zoom, flip=flip, previous_mask=True, keep_clicks=True)
    state = begin(image)
    for click, (probability, window) in zip(
        CLICKS, click_by_click(image, CLICKS, zoom, flip), strict=True
    ):
        (state,) = loop.step([state], [click])
        np.testing.assert_allclose(state.probability, probability, atol=1e-5)
        assert state.window == window
    assert (window is None) == (zoom is None)
