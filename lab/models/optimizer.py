"""Muon for the matrices inside the layers, Adam for the rest: half the steps that Adam alone takes here.

Muon steps along the momentum with all its singular values set to about one, found by Newton-Schulz iterations
(https://kellerjordan.github.io/posts/muon/). Here in float32, which a CPU multiplies faster than bfloat16.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

MOMENTUM = 0.95
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the quintic polynomial; as published."""
ITERATIONS = 5


class MuonAndAdam:
    """Both optimizers behind one rate; Adam's is `adam_share` of Muon's."""

    def __init__(self, model: nn.Module, *, adam_share: float) -> None:
        inner = {
            id(weight) for name, weight in model.named_parameters() if weight.ndim == 2 and "layers." in name
        }
        self._matrices = [weight for weight in model.parameters() if id(weight) in inner]
        self._momenta = [torch.zeros_like(weight) for weight in self._matrices]
        rest = [weight for weight in model.parameters() if id(weight) not in inner]
        self._adam = torch.optim.AdamW(rest, betas=(0.9, 0.95), weight_decay=0.0)
        self._adam_share = adam_share

    def step(self, rate: float) -> None:
        """One step down the gradients at `rate`; they are cleared."""
        for group in self._adam.param_groups:
            group["lr"] = rate * self._adam_share
        self._adam.step()
        self._adam.zero_grad()
        with torch.no_grad():
            for weight, momentum in zip(self._matrices, self._momenta, strict=True):
                momentum.lerp_(weight.grad, 1 - MOMENTUM)
                direction = orthogonal(weight.grad.lerp(momentum, MOMENTUM))
                weight.add_(direction, alpha=-rate * max(1.0, weight.shape[0] / weight.shape[1]) ** 0.5)
                weight.grad = None


def orthogonal(matrix: Tensor) -> Tensor:
    """The matrix with its singular values drawn towards one."""
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / (x.norm() + 1e-7)
    a, b, c = COEFFICIENTS
    for _ in range(ITERATIONS):
        square = x @ x.T
        x = a * x + (b * square + c * square @ square) @ x
    return x.T if tall else x
