"""PyTorch modules as nets."""

from purine.importers.torch.imported import Imported, from_torch

__all__ = ["Imported", "from_torch"]
