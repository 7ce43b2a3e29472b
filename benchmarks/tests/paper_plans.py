"""Plans of the benchmark `paper.py` with drawn data."""


def claim(better, than, clicks=(0,)):
    return {
        "text": f"{better} beats {than}.",
        "better": better,
        "than": than,
        "clicks": list(clicks),
    }


def training_of(root, folder, networks, seeds, steps, batch_size):
    """The training of small networks on drawn objects, a part of a plan.

    Args:
        root: Folder of the objects.
        folder: For the networks.
        networks: Changes to the preset by name.
        seeds: Number of networks of each name.
        steps: Of each training.
        batch_size: Crops of a step.
    """
    return {
        "of": "lite0_stage",
        "trunk": "lite0_unet_prop.objects",
        "folder": str(folder),
        "seeds": seeds,
        "steps": steps,
        "batch_size": batch_size,
        "crop_size": 64,
        "rate": 1e-3,
        "data": {"name": "drawn", "kind": "ImageMaskFolder", "arguments": {"root": str(root)}},
        "networks": networks,
    }


def plan_of(claims, **models):
    """A plan with two data sets, rows of these models, and one figure with all of them."""
    sets = ("GrabCut", "objects")
    return {
        "protocol": "gabbur2021",
        "trials": 2,
        "datasets": {name: {"kind": "ImageMaskFolder", "arguments": {}} for name in sets},
        "rows": {name: {"label": name.upper(), "models": given} for name, given in models.items()},
        "figures": {"fig2": {"title": "Figure 2", "rows": list(models), "claims": claims}},
    }
