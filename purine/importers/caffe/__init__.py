"""Import of Caffe's net and solver definitions (prototxt) and of its weights (caffemodel)."""

from purine.importers.caffe.imported import Imported, Transform, from_caffe, from_caffe_solver
from purine.importers.caffe.solver import CaffeSolver, apply_solver

__all__ = [
    "CaffeSolver",
    "Imported",
    "Transform",
    "apply_solver",
    "from_caffe",
    "from_caffe_solver",
]
