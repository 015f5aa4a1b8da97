"""The time of a training step as a function of the number of devices."""

import dataclasses
import math

import numpy as np
import scipy.optimize
import scipy.special


@dataclasses.dataclass
class ScalingModel:
    """Seconds of a step = compute x images + volume x 2 (N - 1) / N + latency x 2 (N - 1).

    N devices reduce gradients in a ring of 2 (N - 1) messages, which carry 2 (N - 1) / N times the
    gradients (Patarasuk and Yuan 2009); only what the computation does not hide is seen here.
    Fitted by least squares of the relative errors, none of the three below 0.
    """

    compute: float  # s per image of a device
    volume: float  # s to move one gradient's bytes
    latency: float  # s per message
    covariance: np.ndarray  # (3, 3) of the three, from the residuals
    spread: float  # standard deviation of a run's relative error
    spare: int  # runs beyond the parameters; with none, spread and covariance are 0

    def predict(self, devices, images):
        """Returns a step's seconds from devices and images per device."""
        return ring_terms(devices, images) @ [self.compute, self.volume, self.latency]

    def terms_limits(self):
        """Returns how far each of the three may be off, by its 95 % limits; 0 without a spare run,
        since nothing then says it."""
        errors = np.sqrt(np.diag(self.covariance))
        return errors * scipy.special.stdtrit(self.spare, 0.975) if self.spare else errors

    def limits(self, devices, images):
        """Returns the 95 % prediction limits, a fraction of what is predicted (Draper and Smith
        1998, section 8.2); needs a spare run."""
        terms = ring_terms(devices, images)
        of_fit = np.einsum("ij,jk,ik->i", terms, self.covariance, terms)
        of_fit /= self.predict(devices, images) ** 2
        return scipy.special.stdtrit(self.spare, 0.975) * np.sqrt(self.spread**2 + of_fit)


def ring_terms(devices, images):
    """Returns the model's three terms, (n, 3)."""
    devices = np.asarray(devices, dtype=np.float64)
    hops = 2 * (devices - 1)
    return np.stack([images + 0 * devices, hops / devices, hops], axis=1)


def fit_scaling(runs):
    """Returns the ScalingModel of runs with two numbers of devices or more."""
    devices = np.array([run.devices for run in runs])
    images = np.array([run.global_batch / run.devices for run in runs])
    seconds = np.array([run.global_batch / run.rate for run in runs])
    terms = ring_terms(devices, images) / seconds[:, None]
    use = [0, 1, 2] if len(set(devices)) > 2 else [0, 1]  # two sizes cannot tell three terms apart
    scale, found = np.abs(terms).max(axis=0), np.zeros(3)
    fitted, _ = scipy.optimize.nnls(terms[:, use] / scale[use], np.ones(len(runs)))
    fitted[fitted < 1e-9] = 0  # of what they were scaled to: a rounding error, not a term
    found[use] = fitted / scale[use]
    active = found > 0
    spare = len(runs) - active.sum()
    errors = terms @ found - 1
    spread = math.sqrt(errors @ errors / spare) if spare else 0.0
    covariance = np.zeros((3, 3))
    part = terms[:, active] / scale[active]
    inverse = np.linalg.pinv(part.T @ part) / np.outer(scale[active], scale[active])
    covariance[np.ix_(active, active)] = spread**2 * inverse
    return ScalingModel(*found, covariance, spread, spare)


def study_scaling(runs):
    """Returns (the ScalingModel of the smaller runs, these runs, the larger ones, the ScalingModel
    of all), None where the runs do not have three numbers of devices.

    Processes that shared cores are left out: what they took from each other is no communication."""
    usable = [run for run in runs if run.rate and run.global_batch and not run.crowded]
    sizes = sorted({run.devices for run in usable})
    if len(sizes) < 3:
        return None
    limit = sizes[math.ceil(2 * len(sizes) / 3) - 1]
    small = [run for run in usable if run.devices <= limit]
    large = [run for run in usable if run.devices > limit]
    return fit_scaling(small), small, large, fit_scaling(usable)


def scaling_models(runs):
    """Yields (script, study_scaling()) of the runs of each script that may be compared and have
    such a model; nd, which has nobody to reduce with, is the start of all others."""
    for group in sorted({run.group for run in runs}):
        same = [run for run in runs if run.group == group]
        for script in sorted({run.script for run in same} - {"nd", "dp"}):
            members = [run for run in same if run.script in (script, "nd")]
            if found := study_scaling(members):
                yield members[-1].file, found


def efficiency(run, runs):
    """Returns a run's throughput per device over that of the run on the fewest devices, of several
    the fastest; None where the runs have one number of devices."""
    measured = [each for each in runs if each.rate and each.devices]
    if len({each.devices for each in measured}) > 1 and run.rate and run.devices:
        base = min(measured, key=lambda each: (each.devices, -each.rate))
        return run.rate / base.rate * base.devices / run.devices
    return None


def prediction_errors(model, runs):
    """Returns the relative errors of the predicted throughputs of runs."""
    devices = np.array([run.devices for run in runs])
    batches = np.array([run.global_batch for run in runs])
    rates = batches / model.predict(devices, batches / devices)
    return rates / [run.rate for run in runs] - 1
