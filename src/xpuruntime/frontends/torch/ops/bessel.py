"""Lowerings of Bessel functions, of Hurwitz's zeta function, and of orthogonal polynomials, through arithmetic.

Chebyshev series are of the functions that their docstrings name, computed with 45 digits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

from ...not_lowered import NotLowered
from .context import AtenLoweringContext, OpLowering, Results
from .reals import RealFunction, RealValue, in_wide_type

__all__ = ["LOWERINGS"]

_J0_SMALL = (
    0.15772797147489012, -0.008723442352852221, 0.2651786132033368, -0.37009499387264977, 0.15806710233209725, -0.034893769411408884,
    0.004819180069467605, -0.00046062616620627504, 3.246032882100508e-05, -1.7619469077621507e-06, 7.608163592418782e-08, -2.679253530557673e-09,
    7.848696314479465e-11, -1.9438346867370164e-12, 4.125320595634374e-14, -7.588508125447546e-16, 1.2218515873961411e-17, -1.7367896077002368e-19,
)  # fmt: skip
"""j0(x) of x * x in [0, 64]."""
_J1_SMALL = (
    0.08104484632565812, -0.1489751450676521, 0.1609992623572097, -0.08268049176681791, 0.022213639654966037, -0.003646940600769276,
    0.0004050337728354822, -3.255554866857259e-05, 1.9858774049915165e-06, -9.521984756750436e-08, 3.687133759097148e-09, -1.178026622695885e-10,
    3.160154580348003e-12, -7.221755239651773e-14, 1.4232144003513942e-15, -2.4441972916190464e-17, 3.6912682997929334e-19,
)  # fmt: skip
"""j1(x) / x of x * x in [0, 64]."""
_Y0_SMALL = (
    -0.03314611320328494, -0.2744743055297453, 0.17903431407718265, 0.26156734625504663, -0.17730201278114358, 0.04719668959576339,
    -0.007287962479552079, 0.0007531135932577742, -5.632079141056987e-05, 3.206532537654801e-06, -1.44072332740187e-07, 5.248794787330516e-09,
    -1.5837552541812015e-10, 4.02633081830612e-12, -8.747341203310769e-14, 1.6434898714919468e-15, -2.6977881152566837e-17, 3.9032584173475982e-19,
)  # fmt: skip
"""y0(x) - 2 / pi * log(x) * j0(x) of x * x in [0, 64]."""
_Y1_SMALL = (
    0.0025380132357417816, -0.01608717304766875, -0.09591204536083074, 0.08445197259652346, -0.028328123944594365, 0.005289897544167113,
    -0.0006414551451326356, 5.505982873338744e-05, -3.53808001868935e-06, 1.7707804556154404e-07, -7.11055004989928e-09, 2.344337905911516e-10,
    -6.4651518414115946e-12, 1.51429151205002e-13, -3.0511859694473254e-15, 5.34668038572867e-17, -8.224911372021585e-19, 1.1198518333682237e-20,
)  # fmt: skip
"""(y1(x) - 2 / pi * (log(x) * j1(x) - 1 / x)) / x of x * x in [0, 64]."""
_P0 = (
    0.9994603493475187, -0.0005365220468132117, 3.0751847875194745e-06, -5.1705945376060975e-08, 1.6306464635151382e-09, -7.86409137723707e-11,
    5.168262387349193e-12, -4.3045788699253914e-13, 4.3265957431549404e-14, -5.069034095935236e-15, 6.748072215733873e-16, -1.0011513723467786e-16,
    1.6305919233744186e-17, -2.880866169482871e-18, 5.468082783259038e-19, -1.1062036496829717e-19,
)  # fmt: skip
"""Hankel's P of order 0, of (8 / x) ** 2 in [0, 1]."""
_Q0 = (
    -0.015555854605337009, 6.838519942611649e-05, -7.414498411060647e-07, 1.7972457247968992e-08, -7.27191593686632e-10, 4.2201219046687385e-11,
    -3.206747420996635e-12, 3.006145125351706e-13, -3.336328185322427e-14, 4.255225040245461e-15, -6.09993013164005e-16, 9.662128970303257e-17,
    -1.6686065214378146e-17, 3.1082440486738143e-18, -6.191115787358145e-19, 1.3091448717220122e-19, -2.9211627152642775e-20, 6.843227394638251e-21,
    -1.67576856604247e-21,
)  # fmt: skip
"""Hankel's Q of order 0, times x / 8, of (8 / x) ** 2 in [0, 1]."""
_P1 = (
    1.0009030408600137, 0.0008989898330859408, -3.987284300488908e-06, 6.177633960644299e-08, -1.8718907491063067e-09, 8.816898659582339e-11,
    -5.704863640395645e-12, 4.699195515230542e-13, -4.6842237839904895e-14, 5.452674896044717e-15, -7.221180842274018e-16, 1.0667689114335412e-16,
    -1.7312313216116335e-17, 3.0492991197665872e-18, -5.772421654987453e-19, 1.165057175571149e-19,
)  # fmt: skip
"""Hankel's P of order 1, of (8 / x) ** 2 in [0, 1]."""
_Q1 = (
    0.04677778706953532, -9.62772354915708e-05, 9.138615257955454e-07, -2.0959781384083424e-08, 8.229193327650554e-10, -4.686363688176945e-11,
    3.5152187949686082e-12, -3.2643156743279e-13, 3.5967765829165294e-14, -4.5612523950772974e-15, 6.508282957783384e-16, -1.0269147531823243e-16,
    1.767635548776479e-17, -3.2834519872981614e-18, 6.524081149589261e-19, -1.3765771484849487e-19, 3.0657415400328895e-20, -7.169593469340277e-21,
)  # fmt: skip
"""Hankel's Q of order 1, times x / 8, of (8 / x) ** 2 in [0, 1]."""
_K0_SMALL = (
    -0.2676636966169514, 0.3442898999246285, 0.0359799365153615, 0.001264615411446926, 2.286212103119452e-05, 2.5347910790261494e-07,
    1.904516377220209e-09, 1.0349695257633625e-11, 4.2598161427910826e-14, 1.3744654358807508e-16, 3.5708965285083736e-19,
)  # fmt: skip
"""k0(x) + log(x / 2) * i0(x) of x * x in [0, 4]."""
_K1_SMALL = (
    0.7626501136694739, -0.3531559607765449, -0.12261118082265715, -0.006975723859639864, -0.0001730288957513052, -2.4334061415659684e-06,
    -2.213387630734726e-08, -1.4114883926335278e-10, -6.666901694199329e-13, -2.427449850519366e-15, -7.023863479386288e-18,
)  # fmt: skip
"""(k1(x) - log(x / 2) * i1(x)) * x of x * x in [0, 4]."""
_K0_LARGE = (
    1.2201515410329777, -0.0314481013119645, 0.0015698838857300533, -0.00012849549581627802, 1.39498137188765e-05, -1.8317555227191195e-06,
    2.766813639445015e-07, -4.660489897687948e-08, 8.574034017414225e-09, -1.6975345093890614e-09, 3.5773972814003283e-10, -7.957489244477396e-11,
    1.8559491149549264e-11, -4.514597883374519e-12, 1.1403405882073441e-12, -2.9800969231481784e-13, 8.032890775068375e-14, -2.2275133267462965e-14,
    6.340076476276646e-15, -1.848593377920907e-15, 5.5120559994043335e-16, -1.6782311257549006e-16, 5.2103917776435543e-17, -1.6475805939842632e-17,
    5.3004337711773354e-18, -1.7331712005821001e-18, 5.755109202882729e-19, -1.9390956053183555e-19,
)  # fmt: skip
"""exp(x) * sqrt(x) * k0(x) of 1 / x in [0, 1/2]."""
_K1_LARGE = (
    1.3603130952422213, 0.10392373657681724, -0.002857816859622779, 0.00019521551847135162, -1.936197974166083e-05, 2.406484947837217e-06,
    -3.5019606030878126e-07, 5.7410841254500495e-08, -1.0345762465678097e-08, 2.0150497551970347e-09, -4.1903547593419254e-10, 9.218315187605315e-11,
    -2.129967838427791e-11, 5.139639673482343e-12, -1.2891739609498229e-12, 3.348419666052243e-13, -8.976705182010146e-14, 2.4771544242195988e-14,
    -7.0198370892147685e-15, 2.038703166239861e-15, -6.057047270643018e-16, 1.8380935752430455e-16, -5.689462849193648e-17, 1.7940510478863572e-17,
    -5.7567444820733025e-18, 1.8778651901623268e-18, -6.22164528735261e-19, 2.0919125269831136e-19,
)  # fmt: skip
"""exp(x) * sqrt(x) * k1(x) of 1 / x in [0, 1/2]."""
_I0_NEAR = (
    1.6029228068079633, 0.638809625651177, 0.03685485969436176, 0.00098287812725148, 1.4983654208927293e-05, 1.4738449008423848e-07,
    1.0114797900674826e-09, 5.1149979020112795e-12, 1.984280622680562e-14, 6.090516506058955e-17,
)  # fmt: skip
"""i0(x) of x * x in [0, 4]."""
_I1_NEAR = (
    0.6417589969911874, 0.1475393201491934, 0.005898742680020788, 0.00011988137174638708, 1.4739165119093128e-06, 1.2138074968740922e-08,
    7.161106692799279e-11, 3.17487931131012e-13, 1.0962998348773076e-15, 3.0315021220933553e-18,
)  # fmt: skip
"""i1(x) / x of x * x in [0, 4]."""

_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510)
"""Bernoulli numbers of even order, from 2 on."""
_ZETA_TERMS = 10
"""Terms of a zeta function that are added before its tail is approximated."""
_MAX_DEGREE = 64
"""Maximum degree of a polynomial: each is a step of its recurrence."""


# ── Bessel functions ──


def _waves(order: int, size: RealValue) -> tuple[RealValue, RealValue]:
    """Return j and y of numbers from 8 on: sqrt(2 / (pi * x)) times P * cos(a) - Q * sin(a) and P * sin(a) + Q * cos(a), with
    a = x - pi / 4 - order * pi / 2.
    """
    inverse = size.dividing(8.0)
    square = inverse * inverse
    p = square.chebyshev(0.0, 1.0, _P1 if order else _P0)
    q = square.chebyshev(0.0, 1.0, _Q1 if order else _Q0) * inverse
    total, rest = size.do("cos") + size.do("sin"), size.do("sin") - size.do("cos")
    cosine, sine = (rest, -total) if order else (total, rest)  # of a, times sqrt(2)
    scale = (size.do("sqrt") * math.sqrt(math.pi)).dividing(1.0)
    return (p * cosine - q * sine) * scale, (p * sine + q * cosine) * scale


def _bessel_j(order: int) -> RealFunction:
    """Return the Bessel function of the first kind: NaN of infinities, as in PyTorch."""

    def function(x: RealValue) -> RealValue:
        size = x.do("abs")
        near = (size * size).chebyshev(0.0, 64.0, _J1_SMALL if order else _J0_SMALL)
        near = near * size if order else near
        result = near.where(size.do("le", 8.0), _waves(order, size)[0])
        return (-result).where(x.do("lt", 0.0), result) if order else result

    return function


def _bessel_y(order: int) -> RealFunction:
    """Return the Bessel function of the second kind: NaN of negative numbers and of infinity, as in PyTorch."""

    def function(x: RealValue) -> RealValue:
        square, log = x * x, x.do("log") * (2 / math.pi)
        first = square.chebyshev(0.0, 64.0, _J1_SMALL if order else _J0_SMALL)
        near = square.chebyshev(0.0, 64.0, _Y1_SMALL if order else _Y0_SMALL)
        near = near + log * first
        near = near * x - x.dividing(2 / math.pi) if order else near
        result = near.where(x.do("le", 8.0), _waves(order, x)[1])
        return x.do("log").where(x.do("le", 0.0), result)

    return function


def _bessel_k(order: int, *, scaled: bool) -> RealFunction:
    """Return the modified Bessel function of the second kind; scaled: times exp(x)."""

    def function(x: RealValue) -> RealValue:
        square, log = x * x, x.do("log") - math.log(2.0)
        if order:
            near = log * (square.chebyshev(0.0, 4.0, _I1_NEAR) * x)
            near = near + square.chebyshev(0.0, 4.0, _K1_SMALL) / x
        else:
            near = square.chebyshev(0.0, 4.0, _K0_SMALL) - log * square.chebyshev(0.0, 4.0, _I0_NEAR)
        far = x.dividing(1.0).chebyshev(0.0, 0.5, _K1_LARGE if order else _K0_LARGE) / x.do("sqrt")
        if scaled:
            near = near * x.do("exp")
        else:
            far = far * x.do("neg").do("exp")
        result = near.where(x.do("le", 2.0), far)
        return (-log).where(x.do("le", 0.0), result)

    return function


def _spherical(x: RealValue) -> RealValue:
    """Return sin(x) / x; 1 of 0, and 0 of infinities."""
    result = (x * 0.0 + 1.0).where(x.do("eq", 0.0), x.do("sin") / x)
    return x.dividing(1.0).do("abs").where(x.do("isinf"), result)


# ── zeta ──


def _zeta_positive(s: RealValue, q: RealValue) -> RealValue:
    """Return the sum of (q + k) ** -s over all k >= 0, for q > 0, by Euler and Maclaurin."""
    total = q.do("pow", -s)
    for k in range(1, _ZETA_TERMS):
        total = total + (q + float(k)).do("pow", -s)
    far = q + float(_ZETA_TERMS)
    base, inverse = far.do("pow", -s), far.dividing(1.0)
    series, factor, power = base * 0.0 + 0.5, s, inverse
    for j, bernoulli in enumerate(_BERNOULLI, 1):
        series = series + factor * power * (bernoulli / math.factorial(2 * j))
        factor = factor * (s + float(2 * j - 1)) * (s + float(2 * j))
        power = power * inverse * inverse
    tail = base * (far / (s - 1.0) + series)
    return total.where((base * far * 1e18).do("le", total), total + tail)


def _zeta(n: AtenLoweringContext) -> Results:
    """Lower zeta. Terms of negative numbers, of which only integer powers are real, are the difference of two series of positive ones."""
    result = n.out().dtype

    def operand(name: str) -> RealValue:
        value = n.operand(name)
        return RealValue(n, n.cast(value, result) if isinstance(value, str) else n.like(value, result))

    s, q = operand("self"), operand("other")
    negative, whole = q.do("le", 0.0), q.do("floor")
    part = (q - whole).where(negative, q)  # 0 at poles
    y = _zeta_positive(s, part)
    integer, odd = s.do("eq", s.do("floor")), s.do("remainder", 2.0).do("eq", 1.0)
    first, second = (_zeta_positive(s, (-(v - 1.0)).where(negative, q)) for v in (part, q))
    before = first - second
    y = (y + (-before).where(odd, before)).where(negative, y)
    nan, infinity = (RealValue(n, n.like(v, result)) for v in (math.nan, math.inf))
    y = nan.where(negative.do("logical_and", integer.do("logical_not")), y)
    y = nan.where((s + q).do("isnan"), y)
    y = infinity.where(negative.do("logical_and", q.do("eq", whole)), y)
    return infinity.where(s.do("eq", 1.0), nan.where(s.do("lt", 1.0), y)).value


# ── polynomials ──

_Step: TypeAlias = "Callable[[RealValue, RealValue, RealValue, int], RealValue]"
"""(x, p, q, k) -> the polynomial of degree k + 1, from those of degrees k (p) and k - 1 (q)."""


def _polynomial(slope: float, start: float, step: _Step, *, shifted: bool = False) -> OpLowering:
    """Return the lowering of polynomials of a fixed degree. That of degree 1 is ``slope * x + start``; shifted: those of 2 * x - 1."""

    def lower(n: AtenLoweringContext) -> Results:
        degree = n["n"]
        if not isinstance(degree, int) or degree > _MAX_DEGREE:
            raise NotLowered(f"only degrees up to {_MAX_DEGREE} are supported, not {degree}")
        if degree < 1:
            spec = n.out()
            n.ignore("x")
            return str(n.b.full(size=spec.shape, value=float(degree == 0), dtype=spec.dtype))

        def function(x: RealValue) -> RealValue:
            x = x * 2.0 - 1.0 if shifted else x
            before, latest = x * 0.0 + 1.0, x * slope + start
            for k in range(1, degree):
                before, latest = latest, step(x, latest, before, k)
            return latest

        return in_wide_type(function)(n)

    return lower


def _chebyshev(x: RealValue, p: RealValue, q: RealValue, k: int) -> RealValue:
    return x * 2.0 * p - q


def _hermite(x: RealValue, p: RealValue, q: RealValue, k: int) -> RealValue:
    return x * 2.0 * p - q * (2.0 * k)


def _hermite_e(x: RealValue, p: RealValue, q: RealValue, k: int) -> RealValue:
    return x * p - q * float(k)


def _laguerre(x: RealValue, p: RealValue, q: RealValue, k: int) -> RealValue:
    return (-(x - float(2 * k + 1)) * p - q * float(k)) / float(k + 1)


def _legendre(x: RealValue, p: RealValue, q: RealValue, k: int) -> RealValue:
    return (x * float(2 * k + 1) * p - q * float(k)) / float(k + 1)


_FIRST_CHEBYSHEV = {"t": (1.0, 0.0), "u": (2.0, 0.0), "v": (2.0, -1.0), "w": (2.0, 1.0)}

LOWERINGS: dict[str, OpLowering] = {
    "special_bessel_j0": in_wide_type(_bessel_j(0)),
    "special_bessel_j1": in_wide_type(_bessel_j(1)),
    "special_bessel_y0": in_wide_type(_bessel_y(0)),
    "special_bessel_y1": in_wide_type(_bessel_y(1)),
    "special_hermite_polynomial_h.n_scalar": _polynomial(2.0, 0.0, _hermite),
    "special_hermite_polynomial_he.n_scalar": _polynomial(1.0, 0.0, _hermite_e),
    "special_laguerre_polynomial_l.n_scalar": _polynomial(-1.0, 1.0, _laguerre),
    "special_legendre_polynomial_p.n_scalar": _polynomial(1.0, 0.0, _legendre),
    "special_modified_bessel_k0": in_wide_type(_bessel_k(0, scaled=False)),
    "special_modified_bessel_k1": in_wide_type(_bessel_k(1, scaled=False)),
    "special_scaled_modified_bessel_k0": in_wide_type(_bessel_k(0, scaled=True)),
    "special_scaled_modified_bessel_k1": in_wide_type(_bessel_k(1, scaled=True)),
    "special_spherical_bessel_j0": in_wide_type(_spherical),
    "special_zeta": _zeta,
    "special_zeta.other_scalar": _zeta,
    "special_zeta.self_scalar": _zeta,
} | {
    f"special_{'shifted_' if shifted else ''}chebyshev_polynomial_{kind}.n_scalar": _polynomial(
        *first, _chebyshev, shifted=shifted
    )
    for kind, first in _FIRST_CHEBYSHEV.items()
    for shifted in (False, True)
}
