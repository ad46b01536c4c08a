"""Matérn profiles of any smoothness: z^ν K_ν(z) over its value at 0, as a function of q = z², without cancellation, overflow or underflow.

With ν = μ + k, |μ| ≤ ½, the first two, A₀ of order μ and A₁ of order μ + 1, are Temme's series for small q and an integral elsewhere; in units of
2^μ Γ(1 + μ) the recurrence K_{ν+1} = K_{ν−1} + (2ν/z) K_ν adds positive numbers from there,

    A_{j+1} = A_j + q A_{j−1} / (2(μ + j) · 2(μ + j − 1)),     j ≥ 2,     A₂ = A₁ + q A₀ / (2(μ + 1)).

The integral is K_μ(z) = 2e^{−z} ∫₀^∞ e^{−s²} cosh(μt) / √(2z + s²) ds with s = √(2z) sinh(t/2), to which the trapezoidal rule converges exponentially.
Source: Temme 1975, "On the numerical evaluation of the modified Bessel function of the third kind"; Trefethen and Weideman 2014 for the rule.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

# From this z on the integral.
FAR = 1.5
# 1/Γ(1 + x) = Σ cᵢ xⁱ. Source: Abramowitz and Stegun 1964, 6.1.34.
RECIPROCAL_GAMMA = (
    1.0,
    0.57721566490153286,
    -0.65587807152025388,
    -0.042002635034095236,
    0.16653861138229149,
    -0.042197734555544337,
    -0.0096219715278769736,
    0.0072189432466630995,
    -0.0011651675918590651,
    -0.00021524167411495097,
    0.00012805028238811619,
    -2.0134854780788239e-5,
    -1.2504934821426707e-6,
    1.1330272319816959e-6,
    -2.0563384169776071e-7,
    6.1160951044814158e-9,
    5.0020076444692229e-9,
    -1.1812745704870201e-9,
    1.0434267116911005e-10,
    7.7822634399050713e-12,
    -3.6968056186422057e-12,
    5.100370287454476e-13,
    -2.0583260535665068e-14,
)


# The same as even and odd parts in x, of the terms that there are in float64.
EVEN, ODD = RECIPROCAL_GAMMA[::2], RECIPROCAL_GAMMA[1::2]


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def bessel_profile(nu: float, q):
    """z^ν K_ν(z) / (2^{ν−1} Γ(ν)), 1 at q = z² = 0, for ν > 0, or K₀(z) for ν = 0; within some ten eps (1 + z) of itself."""
    info, k = jnp.finfo(q.dtype), round(nu)
    inside, mu = jnp.clip(q, 8 * float(info.tiny), float(info.max)), nu - k
    near = inside < FAR**2
    series, integral = _series(mu, jnp.minimum(inside, FAR**2)), _integral(mu, jnp.maximum(inside, FAR**2))
    before, at = (jnp.where(near, *both) for both in zip(series, integral, strict=True))
    for j in range(1, k):
        before, at = at, at + inside * before / (2 * (mu + j) * (1 if j == 1 else 2 * (mu + j - 1)))
    value = at if k else before * (2 * nu or 1)
    value = jnp.where(near, value, value * jnp.exp(-0.5 * jnp.sqrt(inside)))  # the other half of e^{−z}
    return value if nu == 0 else jnp.where(q > 0, jnp.minimum(value, 1), 1)


@bessel_profile.defjvp
def _bessel_profile_jvp(nu, primals, tangents):
    """d/dq z^ν K_ν = −½ z^{ν−1} K_{ν−1} with K₋ₐ = Kₐ; at q = 0 it is infinite for ν ≤ 1, and 0 is taken."""
    (q,), (dq,) = primals, tangents
    lower = abs(nu - 1)
    slope = -0.5 * _at_zero(lower) / _at_zero(nu) * bessel_profile(lower, q)
    if nu <= 1:
        slope = jnp.where(q > 0, slope * jnp.where(q > 0, q, 1) ** (nu - 1), 0)
    return bessel_profile(nu, q), slope * dq


def _at_zero(nu: float) -> float:
    """What z^ν K_ν is divided by."""
    return 2 ** (nu - 1) * math.gamma(nu) if nu > 0 else 1.0


def _series(mu: float, q):
    """A₀ and A₁ by Temme's series in q/4, for z up to FAR; as many terms as the dtype can tell."""
    y = q / 4
    log, power = jnp.log(y), y**mu
    odd, even = -_polynomial(ODD, mu), _polynomial(EVEN, mu)
    ratio = math.pi * mu / math.sin(math.pi * mu) if mu else 1.0
    falling = -jnp.expm1(mu * log) / (2 * mu) if mu else -log / 2
    f, p, r = ratio * (odd * (1 + power) / 2 + even * falling), 0.5 * math.gamma(1 + mu), 0.5 * math.gamma(1 - mu) * power
    share, first, second = jnp.ones_like(y), f, p * jnp.ones_like(y)
    terms, eps = 1, float(jnp.finfo(q.dtype).eps)
    while (FAR / 2) ** (2 * terms) / math.factorial(terms) ** 2 > eps / 8:
        f = (terms * f + p + r) / (terms**2 - mu**2)
        share, p, r = share * y / terms, p / (terms - mu), r / (terms + mu)
        first, second = first + share * f, second + share * (p - terms * f)
        terms += 1
    return first / math.gamma(1 + mu), 2 * second / math.gamma(1 + mu)


def _polynomial(coefficients, mu: float) -> float:
    """Σ cᵢ μ^{2i}."""
    return float(np.polynomial.polynomial.polyval(mu * mu, coefficients))


def _integral(mu: float, q):
    """A₀ and A₁ times e^{z/2}, for z from FAR on: nodes so close, and so many, that what is left out is below the rounding."""
    z, digits = jnp.sqrt(q), -math.log(float(jnp.finfo(q.dtype).eps) / 4)
    step = min(math.pi / math.sqrt(digits), 2 * math.pi * math.sqrt(2 * FAR) / digits)
    root, zero, one = jnp.sqrt(2 * z), jnp.full_like(z, 0.5), jnp.full_like(z, 0.5)
    for node in range(1, math.ceil(math.sqrt(digits) / step) + 1):
        w = node * step / root
        long, weight = jnp.sqrt(1 + w * w), math.exp(-((node * step) ** 2))
        grown = jnp.exp(2 * mu * jnp.arcsinh(w))
        even, odd = 0.5 * weight * (grown + 1 / grown) / long, 0.5 * weight * (grown - 1 / grown)
        zero, one = zero + even, one + even * (1 + 2 * w * w) + 2 * w * odd
    scale = 2 * step / math.gamma(1 + mu) * (z / 2) ** mu / root * jnp.exp(-0.5 * z)
    return scale * zero, scale * z * one
