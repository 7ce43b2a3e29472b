"""Models in other annotation tools: CVAT, Label Studio and napari."""
