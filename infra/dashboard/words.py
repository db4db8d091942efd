"""What the dashboard says in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from experiment import Experiment

_MOST_NAMES = 8


def introduction(experiment: Experiment, *, page: int, pages: int, left_out: str) -> str:
    """What is compared, and what kind of numbers these are."""
    return (
        f"# {experiment.name}{f' ({page} of {pages})' if pages > 1 else ''}\n"
        f"{experiment.description}\n\n"
        f"Baseline **{experiment.baseline.name}** against {_others(experiment)}, by class of prompts. Time per output "
        "token is per token, not per streamed chunk. In the ratios, above 1 means better than the baseline.\n\n"
        "The values are *measured* when the benchmark ran against this cluster. They are *emulated* when someone "
        "published a run of the emulated arms here: CloudWatch cannot tell the two apart, the run's summary.json can. "
        "Intervals and verdicts stand in the report of a run, and so does the exact cost: the one here is an estimate, "
        "the arm's list price over concurrency times the mean throughput of a request."
        + (f" So many arms leave no room for {left_out}." if left_out else "")
    )


def node_words(experiment: Experiment) -> str:
    """What Container Insights can and cannot say about the devices."""
    if experiment.baseline.serving.allocation == "device-plugin":
        return (
            "## Nodes\nFrom Container Insights. The device plugin hands out the devices, so the agent knows which pod "
            "holds which NeuronCores."
        )
    return (
        "## Nodes\nFrom Container Insights, **by node only**: devices are held by resource claims (DRA), and the agent "
        "learns from the device plugin alone which pod holds which NeuronCores. The Neuron documentation says that its "
        "monitor does not support DRA yet, so an empty graph of NeuronCores does not mean that they are idle."
    )


def _others(experiment: Experiment) -> str:
    names = [arm.name for arm in experiment.served_arms if arm is not experiment.baseline]
    if not names:
        return "no other arm"
    left = len(names) - _MOST_NAMES
    return f"**{', '.join(names[:_MOST_NAMES])}**{f' and {left} more' if left > 0 else ''}"
