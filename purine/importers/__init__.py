"""Nets from elsewhere as graphs: PyTorch modules and Caffe definitions."""
