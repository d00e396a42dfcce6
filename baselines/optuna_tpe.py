"""``optuna-tpe``: Bayesian optimisation with Optuna's tree-structured Parzen estimator.

**What it is.** TPE splits the trials into good and bad, estimates a density of each, and suggests the point with the
largest ratio of the two. Here it is the sampler of Optuna 5, multivariate as by its default, over one fixed product
space of all parameters; limits that a run broke are told by name, and feasible trials rank before infeasible ones.

**Faithful.** The sampler is Optuna's own, untouched; its suggestions on closed-form problems equal those of
``study.optimize``.

**Added, for it to be strong here.** What `ModelTuner` says: warm start, legality, repeats, failures. Values are put to
the sampler as categories; as their place in the order of declaration (``encoding`` = ``index``) they did as well on
development worlds.

**Source.** Bergstra et al., NeurIPS 2011; Watanabe, arXiv 2304.11127; optuna/optuna@v5.0.0.
"""

from __future__ import annotations

from attune_lab.contracts import TuningTask
from baselines.common.model_tuner import Habits, ModelTuner
from baselines.common.options import Option, read_options
from baselines.common.optuna_library import STUDY_OPTIONS, optuna, study_copy
from baselines.common.optuna_sampler import OptunaSampler
from baselines.common.points import Points

OPTIONS = {
    "n_startup_trials": Option(8, least=1),
    "multivariate": Option(True),
    "encoding": Option("categorical", choices=("categorical", "index")),
    **STUDY_OPTIONS,
}


class OptunaTPE(ModelTuner):
    """Optuna's TPE sampler behind the tuner contract.

    Options: ``n_startup_trials``, ``multivariate`` and ``encoding`` of the sampler; ``storage`` and ``study``, where
    the trials are copied to.

    Raises:
        UserError: an unknown option, or a value it cannot take.
    """

    name = "optuna-tpe"

    def __init__(self, task: TuningTask) -> None:
        options = read_options(self.name, task.options, OPTIONS)
        points = Points(task)
        startup = options["n_startup_trials"]
        tpe = optuna().samplers.TPESampler(
            n_startup_trials=startup, multivariate=options["multivariate"], seed=task.seed
        )
        sampler = OptunaSampler(points.choices, tpe, encoding=options["encoding"])
        copy = study_copy(self.name, options, task.seed, points.choices)
        super().__init__(task, points, sampler, Habits(startup=startup), copy)
