"""A threshold from good images alone.

Each good image is scored as if it were new; the conformal quantile of those scores is the threshold. With n images
no false-alarm rate below 1 / (n + 1) can be promised, and none is.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Calibration:
    """Scores of good images that the memory did not know, and what follows from them."""

    scores: tuple[float, ...]
    """Image scores, ascending."""
    peaks: tuple[float, ...]
    """Largest pixel of each heat map, ascending."""
    typical: float
    """Median patch score of a good image: where the colour scale begins."""
    false_alarm_rate: float
    """The rate asked for; :attr:`promised_rate` is the one the data can carry."""

    @property
    def promised_rate(self) -> float:
        """The smallest false-alarm rate that this many images can promise, no smaller than the one asked for."""
        return max(self.false_alarm_rate, 1 / (len(self.scores) + 1))

    @property
    def threshold(self) -> float:
        """Image score that a new good image exceeds with probability at most :attr:`promised_rate`."""
        return conformal_quantile(self.scores, self.promised_rate)

    @property
    def pixel_threshold(self) -> float:
        """Heat-map value that a new good image exceeds anywhere with probability at most :attr:`promised_rate`."""
        return conformal_quantile(self.peaks, self.promised_rate)

    def p_value(self, score: float) -> float:
        """(1 + number of good images scoring at least ``score``) / (n + 1)."""
        return (1 + sum(good >= score for good in self.scores)) / (len(self.scores) + 1)


def conformal_quantile(ascending: tuple[float, ...], rate: float) -> float:
    """The ceil((n + 1)(1 - rate))-th smallest of n values: an exchangeable next one exceeds it at most that often."""
    count = len(ascending)
    # 1e-9: (n + 1)(1 - 1 / (n + 1)) must round to n, not to n + 1
    rank = math.ceil((count + 1) * (1 - rate) - 1e-9)
    return ascending[min(rank, count) - 1]
