"""Image data sets by name, from the official place or a folder, and splits over clients."""

from fedtaper.problems.data.sets import ImageData, load_images
from fedtaper.problems.data.sources import SOURCES, Source
from fedtaper.problems.data.splits import Dirichlet, DominantClass, Iid, RareClass

__all__ = [
    "SOURCES",
    "Dirichlet",
    "DominantClass",
    "Iid",
    "ImageData",
    "RareClass",
    "Source",
    "load_images",
]
