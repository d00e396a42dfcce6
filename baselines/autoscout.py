"""Two levels: a bandit over structures of the plan, and inside a structure a small density model of its switches.

AutoScout (arXiv 2603.11603) tunes training systems whose settings are mixed and hierarchical: sparse structural choices
(how the model is split) and dense execution parameters are refined jointly, features are prioritised as evidence
comes in, and an ensemble of simulators of varying fidelity guides the search cheaply.

Faithful: the two levels, the ensemble weighed by how well each member has ranked what was measured. Reconstructed from
the abstract, no code being public: the bandit (upper confidence bounds, UCB1, on the speed of a structure, with the
ensemble as its prior), the inner model (densities of the values of the better and of the worse runs, as in the
tree-structured Parzen estimator), and the members. These are the cost model itself; a roofline that knows the
arithmetic, its efficiency and the fill of the pipeline, but no network; and the rule of thumb that a copy of the model
should be spread over no more GPUs than it must.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from attune_lab.contracts import Proposal, TuningTask
from attune_lab.parameters import LAYOUT
from attune_lab.recipe import Value
from baselines.common.offsets import Floats
from baselines.common.planner import Planner
from baselines.common.pricelist import Priced
from baselines.common.proposals import propose

STRUCTURE = ("tp", "pp", "ep", "cp", "recompute")
"""What an arm of the bandit is."""

MEMBERS = ("cost model", "roofline", "rule of thumb")

RECENT = 12
"""The last so many recipes measured decide the weights of the ensemble."""

TRUST = 4.0
"""How strongly a member's rank correlation counts: weights go with its exponential times this."""

DOUBLING = 0.04
"""Share of its speed that the rule of thumb takes for lost with every doubling of the GPUs that share a copy."""

CURIOSITY = 0.05
"""Spread of log step times between what is expected of a structure and what is found: scales the bonus."""

NO_GAIN = 1e-3
"""Log gains below this only order what is left."""

BETTER = 0.25
"""Share of the runs that count as the better ones."""

PULL = 0.005
"""Log seconds that a recipe is taken to gain for each unit of log density ratio of its switches."""


def rank_correlation(a: Sequence[float] | Floats, b: Sequence[float] | Floats) -> float:
    """Spearman's coefficient; 0 where either has no spread or there are fewer than three pairs."""
    from scipy.stats import rankdata

    if len(a) < 3:
        return 0.0
    x, y = rankdata(a), rankdata(b)
    spread = float(x.std() * y.std())
    return float(((x - x.mean()) * (y - y.mean())).mean() / spread) if spread > 0.0 else 0.0


class Ensemble:
    """Members' views of log step time, each set right by its mean error, weighed by rank correlation.

    Attributes:
        weights: of the `MEMBERS`, summing to 1.
    """

    def __init__(self, task: TuningTask) -> None:
        self._gpus, self._sequences = task.cluster.n_gpus, int(str(task.baseline.get("gbs")))
        self._known: dict[str, tuple[float, ...]] = {}
        self._offsets = np.zeros(len(MEMBERS))
        self.weights: Floats = np.full(len(MEMBERS), 1.0 / len(MEMBERS))

    def fit(self, measured: Sequence[tuple[Priced, float]]) -> None:
        """Learn weights and offsets from recipes and their seconds, oldest first."""
        if not measured:
            return
        recent = measured[-RECENT:]
        truth = np.log([seconds for _, seconds in recent])
        views = self._views([one for one, _ in recent])
        self._offsets = np.median(truth[:, None] - views, axis=0)
        trust = np.exp(TRUST * np.array([rank_correlation(view, truth) for view in views.T]))
        self.weights = trust / trust.sum()

    def predict(self, points: Sequence[Priced]) -> Floats:
        """Expected log seconds, shape (len(points),)."""
        return np.asarray((self._views(points) + self._offsets) @ self.weights)

    def _views(self, points: Sequence[Priced]) -> Floats:
        """Log seconds by each member, but for a constant; shape (len(points), members)."""
        for one in points:
            if one.recipe.digest not in self._known:
                self._known[one.recipe.digest] = self._look(one)
        rows = [self._known[one.recipe.digest] for one in points]
        return np.array(rows, dtype=np.float64).reshape(len(points), len(MEMBERS))

    def _look(self, one: Priced) -> tuple[float, ...]:
        estimate, shared = one.estimate, one.size("tp") * one.size("pp") * one.size("cp")
        micro_batches = self._sequences * shared / (self._gpus * one.size("mbs"))
        fill = (one.size("pp") - 1) / (one.size("vpp") * micro_batches)
        compute = estimate.breakdown_s.get("compute", estimate.step_time_s)
        return (
            math.log(estimate.step_time_s),
            math.log(compute * (1.0 + fill)),
            DOUBLING * math.log2(shared * max(one.size("ep") // one.size("tp"), 1)),
        )


def log_density_ratios(better: Sequence[Value], worse: Sequence[Value]) -> Callable[[Value], float]:
    """log (share among the better / share among the worse) as a function of one switch's value; each value counts as
    seen once in both.

    **Source:** Bergstra et al. 2011, Algorithms for Hyper-Parameter Optimization, eq. 2-4.
    """
    choices = len({*better, *worse})
    among_better, among_worse = Counter(better), Counter(worse)

    def ratio(value: Value) -> float:
        of_better = (1 + among_better[value]) / (choices + len(better))
        of_worse = (1 + among_worse[value]) / (choices + len(worse))
        return math.log(of_better / of_worse)

    return ratio


class AutoScout(Planner):
    """Pulls the arm with the best bound, and runs the recipe of that structure that its switches favour."""

    name = "autoscout"

    def __init__(self, task: TuningTask) -> None:
        super().__init__(task)
        self.ensemble = Ensemble(task)
        self._switches = [key for key in task.space.parameters if key not in LAYOUT and key not in STRUCTURE]

    def plans(self) -> Mapping[Priced, str]:
        """The favoured recipe of the structure with the most worth that has a new one."""
        measured = [(one, trial.step_time_s or math.nan) for one, trial in self.knowledge.measured]
        self.ensemble.fit(measured)
        points = [one for one in self.knowledge.prices.good if not self.knowledge.history.known(one.recipe)]
        density = self._density(measured)
        arms: dict[tuple[Value, ...], list[tuple[float, float, Priced]]] = defaultdict(list)
        for one, gain, sound in zip(points, self._gains(points, measured), self.knowledge.sound(points), strict=True):
            favour = _worth(gain + PULL * density(one), sound)
            arms[_structure(one)].append((_worth(gain, sound), favour, one))
        for arm in sorted(arms, key=lambda arm: -max(worth for worth, _, _ in arms[arm])):
            favoured = sorted(arms[arm], key=lambda entry: -entry[1])
            chosen = self.knowledge.first_open(one for _, _, one in favoured)
            if chosen is not None:
                named = ", ".join(f"{key} {value}" for key, value in zip(STRUCTURE, arm, strict=True))
                return {chosen: f"the structure with {named} has the best bound"}
        return {}

    def _choose(self) -> Proposal | None:
        for one, reason in self.plans().items():
            return propose(self.task, one.recipe, reason, one.estimate)
        return super()._choose()

    def _gains(self, points: Sequence[Priced], measured: Sequence[tuple[Priced, float]]) -> Floats:
        """Upper bounds of the log gain of each recipe on the best, by its structure.

        **Source:** Auer, Cesa-Bianchi & Fischer 2002, Finite-time Analysis of the Multiarmed Bandit Problem, UCB1.
        """
        gains: dict[tuple[Value, ...], list[float]] = defaultdict(list)
        for (one, seconds), log_s in zip(measured, self.ensemble.predict([one for one, _ in measured]), strict=True):
            gains[_structure(one)].append(log_s - math.log(seconds))
        log_s = self.ensemble.predict(points) + np.log(self.knowledge.crowding(points))
        best = min((math.log(seconds) for _, seconds in measured), default=0.0)
        found = []
        for one in points:
            pulls = gains.get(_structure(one), [])
            bonus = CURIOSITY * math.sqrt(2.0 * math.log(1 + len(measured)) / (1 + len(pulls)))
            found.append(sum(pulls) / (len(pulls) + 1) + bonus)  # the prior counts as one pull as expected
        return np.asarray(best - log_s + np.array(found))

    def _density(self, measured: Sequence[tuple[Priced, float]]) -> Callable[[Priced], float]:
        """The log density ratio of a recipe's switches, by the better and the worse of the runs."""
        runs = [one.values for one, _ in sorted(measured, key=lambda pair: pair[1])]
        count = math.ceil(BETTER * len(runs))
        tables = {
            key: log_density_ratios([v.get(key) for v in runs[:count]], [v.get(key) for v in runs[count:]])
            for key in self._switches
        }
        return lambda one: sum(tables[key](one.values.get(key)) for key in self._switches)


def _worth(gain: float, sound: float) -> float:
    """A gain times the chance to be allowed; what is expected to lose keeps a little worth, so that all are ordered."""
    return sound * (gain if gain > NO_GAIN else NO_GAIN * math.exp(gain - NO_GAIN))


def _structure(one: Priced) -> tuple[Value, ...]:
    return tuple(one.values.get(key) for key in STRUCTURE)
