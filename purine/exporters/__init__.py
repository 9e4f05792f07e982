"""Trained nets for other tools: PyTorch, ONNX and Caffe."""
