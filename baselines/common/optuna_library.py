"""Optuna itself: imported late, silent, and its storages behind one word."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attune_lab.contracts import EnvironmentFault, UserError
from attune_lab.recipe.recipe import Value
from baselines.common.options import Option
from baselines.common.outcomes import Outcome

if TYPE_CHECKING:
    from optuna.distributions import CategoricalDistribution
    from optuna.study import Study

JOURNAL = "journal:"

STUDY_OPTIONS: Mapping[str, Option] = {"storage": Option(""), "study": Option("")}
"""Options of a tuner that copies its trials to an Optuna storage: where, and under which name."""


def optuna() -> Any:
    """The library, silent but for errors.

    Raises:
        UserError: it is not installed, or does not import.
    """
    try:
        import optuna as library
    except Exception as error:  # a broken dependency of it may raise anything
        raise UserError(f"Optuna does not import ({type(error).__name__}: {error}); run pip install optuna") from error
    library.logging.set_verbosity(library.logging.ERROR)
    return library


def open_study(storage: str, name: str) -> Study:
    """The study called ``name``, created where there is none; values are seconds a step, to be minimised.

    Args:
        storage: an Optuna storage URL (``sqlite:///study.db``), or ``journal:PATH`` for a journal file.

    Raises:
        UserError: ``storage`` is neither.
        EnvironmentFault: the storage cannot be used.
    """
    library = optuna()
    if not storage.startswith(JOURNAL) and "://" not in storage:
        raise UserError(f"storage {storage!r} is no Optuna storage; give a URL as sqlite:///study.db, or journal:PATH")
    try:
        place: Any = storage
        if storage.startswith(JOURNAL):
            journal = library.storages.journal
            place = library.storages.JournalStorage(journal.JournalFileBackend(storage.removeprefix(JOURNAL)))
        study: Study = library.create_study(storage=place, study_name=name, load_if_exists=True)
    except Exception as error:  # drivers of databases raise what they like
        cause = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise EnvironmentFault(
            f"the Optuna storage {storage} cannot be used ({cause}); check it or leave it out"
        ) from error
    return study


def distributions(choices: Mapping[str, Sequence[Value]]) -> dict[str, CategoricalDistribution]:
    """One categorical distribution a parameter, over its values."""
    return {key: optuna().distributions.CategoricalDistribution(values) for key, values in choices.items()}


class StudyCopy:
    """A copy of a tuner's trials in an Optuna storage, for optuna-dashboard.

    A campaign that is resumed tells its trials again; what is there already is compared and not added twice.
    """

    def __init__(self, storage: str, name: str, choices: Mapping[str, Sequence[Value]]) -> None:
        self._where = f"study {name} in {storage}"
        self._study = open_study(storage, name)
        self._there = self._study.get_trials(deepcopy=False)
        self._distributions = distributions(choices)
        self._told = 0

    def add(self, point: Mapping[str, Value], result: Outcome) -> None:
        """File a trial.

        Raises:
            UserError: the study has another trial in its place, so it is another campaign's.
        """
        params = {key: point[key] for key in self._distributions}
        self._told += 1
        if self._told <= len(self._there):
            if self._there[self._told - 1].params != params:
                raise UserError(f"{self._where} holds the trials of another campaign; give option study another name")
            return
        self._study.add_trial(
            optuna().trial.create_trial(
                value=result.value,
                params=params,
                distributions=self._distributions,
                constraints=dict(result.violations),
                user_attrs=dict(result.notes),
            )
        )


def study_copy(
    tuner: str, options: Mapping[str, Any], seed: int, choices: Mapping[str, Sequence[Value]]
) -> StudyCopy | None:
    """The copy that a tuner's options ask for, None where they ask for none."""
    if not options["storage"]:
        return None
    return StudyCopy(options["storage"], options["study"] or f"{tuner}-{seed}", choices)
