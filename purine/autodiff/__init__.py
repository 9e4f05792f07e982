"""Reverse-mode differentiation of graphs."""

from purine.autodiff.reverse import GRADIENT, backward, gradient_of, losses_of, reported_losses

__all__ = ["GRADIENT", "backward", "gradient_of", "losses_of", "reported_losses"]
