"""What a framework has: a strategy that asks for something else is refused with the frameworks that have it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from costmodel import catalog
from costmodel.errors import SpecError
from costmodel.facts.cluster import Cluster
from costmodel.facts.features import feature_of, lacks
from costmodel.strategy import decision_text

ALL_THE_SAME = "What it would cost all the same: search.framework_rules: false."


def require_features(cluster: Cluster, decisions: Mapping[str, Iterable[int]], where: str) -> None:
    """
    Refuse values of decisions that the cluster's framework does not have.

    Parameters
    ----------
    cluster
        What the job runs on.
    decisions
        Values by decision; one that the framework has among them is enough.
    where
        Dotted path of the entry that gives them.

    Raises
    ------
    SpecError
        With the frameworks that have it.
    """
    framework = cluster.framework
    if framework is None:
        return
    for name, values in decisions.items():
        missing = [value for value in values if lacks(framework, name, value)]
        if missing and len(missing) == len(list(values)):
            text = decision_text(name, missing[0])
            having = catalog.with_feature(name, feature_of(name, missing[0]))
            hint = f"These have it: {', '.join(having)} (cluster.framework). {ALL_THE_SAME}" if having else ALL_THE_SAME
            raise SpecError(f"{where}.{name}", f"{framework.name} has no {name} '{text}'.", hint)
