"""Connectionist temporal classification: sums over alignments, in logarithms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from tlrt.torch.routes.base import aten, route


def _lengths(lengths: Any) -> list[int]:
    return lengths.tolist() if isinstance(lengths, torch.Tensor) else list(lengths)


def _extended(log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any, blank: int) -> Any:
    """For each sample the labels with blanks around them, as long as the longest; which of them differ from the label two places
    before; and both lengths."""
    inputs, lengths = _lengths(input_lengths), _lengths(target_lengths)
    t_max, batch, _ = log_probs.shape
    if len(inputs) != batch or len(lengths) != batch or any(t > t_max for t in inputs):
        raise NotImplementedError("lengths that PyTorch refuses")
    longest = max(lengths, default=0)
    device = log_probs.device
    spans = torch.tensor(lengths, device=device)
    if targets.dim() == 1:
        starts = torch.tensor([sum(lengths[:i]) for i in range(batch)], device=device)
        place = starts[:, None] + torch.arange(longest, device=device)
        held = torch.cat([targets.to(device).long(), torch.zeros(longest + 1, dtype=torch.int64, device=device)])
        labels = held[place.clamp(max=held.numel() - 1)]
    else:
        labels = targets.to(device).long()[:, :longest]
    used = torch.arange(longest, device=device) < spans[:, None]
    labels = torch.where(used, labels, blank)
    whole = torch.full((batch, 2 * longest + 1), blank, dtype=torch.int64, device=device)
    whole[:, 1::2] = labels
    skips = torch.zeros_like(whole, dtype=torch.bool)
    skips[:, 3::2] = labels[:, 1:] != labels[:, :-1]
    return whole, skips, torch.tensor(inputs, device=device), spans


def _shifted(x: Any, by: int) -> Any:
    """x with its columns moved to the right, or to the left by a negative number, and -inf where none came."""
    return (
        torch.nn.functional.pad(x, (by, -by), value=-math.inf)
        if abs(by) <= x.shape[1]
        else torch.full_like(x, -math.inf)
    )


def _add(x: Any, y: Any) -> Any:
    return torch.logaddexp(x, y)


def _alphas(log_probs: Any, whole: Any, skips: Any) -> list[Any]:
    """For each time the logarithm of the sum over the beginnings of alignments that end at each label."""
    scores = log_probs.gather(2, whole.expand(log_probs.shape[0], *whole.shape))
    first = torch.arange(whole.shape[1], device=whole.device) < 2
    alphas = [torch.where(first, scores[0], -math.inf)]
    for t in range(1, scores.shape[0]):
        before = alphas[-1]
        two = torch.where(skips, _shifted(before, 2), -math.inf)
        alphas.append(_add(_add(before, _shifted(before, 1)), two) + scores[t])
    return alphas


def _last_two(x: Any, spans: Any) -> Any:
    """ln of the sum of both places where an alignment may end."""
    end = 2 * spans[:, None]
    before = torch.where(spans[:, None] > 0, x.gather(1, (end - 1).clamp(min=0)), -math.inf)
    return _add(x.gather(1, end), before)[:, 0]


@route(
    aten._use_cudnn_ctc_loss.default,
    aten._use_cudnn_ctc_loss.Tensor,
    aten._use_miopen_ctc_loss.default,
    aten._use_miopen_ctc_loss.Tensor,
)
def use_library_ctc_loss(*_: Any) -> bool:
    return False


@route(aten._ctc_loss.default, aten._ctc_loss.Tensor)
def ctc_loss(
    log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any, blank: int = 0, zero_infinity: bool = False
) -> Any:
    if log_probs.dim() != 3 or not log_probs.shape[0]:
        raise NotImplementedError
    whole, skips, times, spans = _extended(log_probs, targets, input_lengths, target_lengths, blank)
    alpha = torch.stack(_alphas(log_probs, whole, skips), 1)
    last = (times - 1).clamp(min=0)[:, None, None].expand(-1, 1, whole.shape[1])
    loss = -_last_two(alpha.gather(1, last)[:, 0], spans)
    loss = torch.where(times > 0, loss, torch.where(spans > 0, math.inf, 0.0))
    return loss, alpha


@route(aten._ctc_loss_backward.default, aten._ctc_loss_backward.Tensor)
def ctc_loss_backward(
    g: Any,
    log_probs: Any,
    targets: Any,
    input_lengths: Sequence[int],
    target_lengths: Sequence[int],
    loss: Any,
    alpha: Any,
    blank: int,
    zero_infinity: bool = False,
) -> Any:
    """exp(log_probs) less the share of the alignments that pass by a label at a time, as PyTorch has it: the gradient
    with respect to scores before their log-softmax, which is that of log_probs up to what the softmax takes away."""
    whole, skips, times, spans = _extended(log_probs, targets, input_lengths, target_lengths, blank)
    scores = log_probs.gather(2, whole.expand(log_probs.shape[0], *whole.shape))
    places = torch.arange(whole.shape[1], device=whole.device)
    ends = (places >= 2 * spans[:, None] - 1) & (places <= 2 * spans[:, None]) & (places >= 0)
    onward = _shifted(skips.to(torch.float32), -2) > 0  # a label that may be left for that two places after
    beta = torch.full_like(scores[0], -math.inf)
    parts = []
    for t in reversed(range(scores.shape[0])):
        two = torch.where(onward, _shifted(beta, -2), -math.inf)
        step = _add(_add(beta, _shifted(beta, -1)), two)
        start = torch.where(ends, 0.0, -math.inf)
        beta = torch.where((times - 1 == t)[:, None], start, step) + scores[t]
        parts.append(alpha[:, t] + beta)
    through = torch.stack(parts[::-1])  # twice the score of the place itself
    shares = (through - scores + loss[:, None]).exp()
    shares = torch.where(through == -math.inf, 0.0, shares)
    by_label = torch.zeros_like(log_probs).scatter_add(2, whole.expand(scores.shape), shares)
    found = (log_probs.exp() - by_label) * g[:, None]
    found = torch.where((loss == math.inf)[:, None], 0.0 if zero_infinity else math.nan, found)
    over = torch.arange(log_probs.shape[0], device=log_probs.device)[:, None] >= times
    return torch.where(over[:, :, None], 0.0, found)
