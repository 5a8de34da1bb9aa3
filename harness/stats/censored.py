"""Log-normal fit of censored times: the likelihood beneath the speed-up intervals."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class LogNormalFit:
    """Maximum-likelihood estimates; `covariance` is that of (coefficients, log sigma), observed information."""

    coefficients: np.ndarray
    sigma: float
    covariance: np.ndarray
    loglik: float

    @property
    def standard_errors(self) -> np.ndarray:
        """Standard errors of the coefficients, without any small-sample correction."""
        return np.sqrt(np.diag(self.covariance)[:-1])


class DegenerateFit(ValueError):
    """The likelihood has no maximum inside: no spread between runs, or no event to locate an arm."""


def _terms(bound: np.ndarray, sign: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Value, slope and curvature in u of log Phi(sign * u) at u = bound."""
    from scipy.special import log_ndtr

    value = log_ndtr(sign * bound)
    mills = np.exp(-0.5 * bound**2 - 0.5 * math.log(2 * math.pi) - value)
    return value, sign * mills, -mills * (sign * bound + mills)


def _interval_terms(low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, ...]:
    """log(Phi(high) - Phi(low)), its slopes in low and high, and its three curvatures."""
    from scipy.special import log_ndtr

    # Phi(high) - Phi(low), taken in the tail where both are small, so that it never cancels to 0
    flip = low > 0
    a, b = np.where(flip, -high, low), np.where(flip, -low, high)
    log_b, log_a = log_ndtr(b), log_ndtr(a)
    value = log_b + np.log(-np.expm1(np.minimum(log_a - log_b, -1e-300)))
    norm = 0.5 * math.log(2 * math.pi)
    pdf_low, pdf_high = np.exp(-0.5 * low**2 - norm - value), np.exp(-0.5 * high**2 - norm - value)
    return (
        value,
        -pdf_low,
        pdf_high,
        low * pdf_low - pdf_low**2,
        -high * pdf_high - pdf_high**2,
        pdf_low * pdf_high,
    )


def _objective(params: np.ndarray, y_low: np.ndarray, y_high: np.ndarray, x: np.ndarray):
    """Log-likelihood, gradient and Hessian in Olsen's parameters (coefficients / sigma, theta = 1 / sigma).

    With u = theta * y - x @ gamma every term is concave, so Newton's method cannot go astray.
    """
    theta = params[-1]
    exact = y_low == y_high
    right = np.isposinf(y_high)
    left = np.isneginf(y_low)
    between = ~(exact | right | left)
    value, gradient, hessian = 0.0, np.zeros(len(params)), np.zeros((len(params), len(params)))

    def design(y: np.ndarray, rows: np.ndarray) -> np.ndarray:
        return np.column_stack([-x[rows], y])

    def add(d: np.ndarray, slope: np.ndarray, curve: np.ndarray) -> None:
        nonlocal gradient, hessian
        gradient = gradient + d.T @ slope
        hessian = hessian + (d * curve[:, None]).T @ d

    if exact.any():
        d = design(y_low[exact], exact)
        u = d @ params
        value += float(np.sum(math.log(theta) - 0.5 * u**2 - 0.5 * math.log(2 * math.pi)))
        add(d, -u, -np.ones_like(u))
        gradient[-1] += exact.sum() / theta
        hessian[-1, -1] -= exact.sum() / theta**2
    for rows, bound, sign in ((right, y_low, -1.0), (left, y_high, 1.0)):
        if rows.any():
            d = design(bound[rows], rows)
            log_p, slope, curve = _terms(d @ params, sign)
            value += float(log_p.sum())
            add(d, slope, curve)
    if between.any():
        d_low, d_high = design(y_low[between], between), design(y_high[between], between)
        log_p, s_low, s_high, c_low, c_high, c_both = _interval_terms(d_low @ params, d_high @ params)
        value += float(log_p.sum())
        add(d_low, s_low, c_low)
        add(d_high, s_high, c_high)
        cross = (d_low * c_both[:, None]).T @ d_high
        hessian = hessian + cross + cross.T
    return value, gradient, hessian


def _start(y_low: np.ndarray, y_high: np.ndarray, x: np.ndarray) -> np.ndarray:
    finite_low = np.where(np.isneginf(y_low), y_high, y_low)
    middle = np.where(np.isposinf(y_high), finite_low, 0.5 * (finite_low + y_high))
    middle = np.where(np.isneginf(y_low), y_high, middle)
    beta = np.linalg.lstsq(x, middle, rcond=None)[0]
    theta = 1.0 / max(float(np.sqrt(np.mean((middle - x @ beta) ** 2))), 1e-3)
    return np.append(theta * beta, theta)


def fit_lognormal(y_low: np.ndarray, y_high: np.ndarray, x: np.ndarray) -> LogNormalFit:
    """Maximises the likelihood of y ~ Normal(x @ coefficients, sigma) for censored log times.

    `y_low` == `y_high` is an exact log time; an infinite `y_high` right-censors at `y_low`; an infinite
    `y_low` left-censors at `y_high`; otherwise y lies between them. `x` is [runs, coefficients] with a
    column of ones. Equation: evaluation.md 2.4. Raises DegenerateFit where there is no inner maximum.
    """
    y_low, y_high, x = (np.asarray(v, dtype=float) for v in (y_low, y_high, x))
    params = _start(y_low, y_high, x)
    value, gradient, hessian = _objective(params, y_low, y_high, x)
    for _ in range(200):
        try:
            step = -np.linalg.solve(hessian, gradient)
        except np.linalg.LinAlgError as error:
            raise DegenerateFit("the likelihood is flat: an arm has no event") from error
        decrement = float(gradient @ step)
        if decrement < 1e-12:
            break
        size = 1.0
        while size > 1e-12:
            trial = params + size * step
            if trial[-1] > 0:
                found = _objective(trial, y_low, y_high, x)
                if math.isfinite(found[0]) and found[0] >= value + 1e-4 * size * decrement:
                    break
            size /= 2
        else:
            break
        params, (value, gradient, hessian) = trial, found
        if params[-1] > 1e6:
            raise DegenerateFit("no spread between runs: the replicates may be identical")
    if float(gradient @ np.linalg.solve(-hessian, gradient)) > 1e-6:
        raise DegenerateFit("the likelihood has no maximum inside: too little spread or too few events")
    return _natural(params, value, hessian)


def _natural(params: np.ndarray, value: float, hessian: np.ndarray) -> LogNormalFit:
    """From Olsen's parameters to (coefficients, log sigma), with the covariance by the chain rule."""
    gamma, theta = params[:-1], float(params[-1])
    try:
        covariance = np.linalg.inv(-hessian)
    except np.linalg.LinAlgError as error:
        raise DegenerateFit("the information matrix is singular: an arm has no event") from error
    jacobian = np.diag(np.append(np.full(len(gamma), 1 / theta), -1 / theta))
    jacobian[:-1, -1] = -gamma / theta**2
    covariance = jacobian @ covariance @ jacobian.T
    if not np.all(np.isfinite(covariance)) or np.any(np.diag(covariance) <= 0):
        raise DegenerateFit("the information matrix is singular: an arm has no event")
    return LogNormalFit(gamma / theta, 1 / theta, covariance, value)
