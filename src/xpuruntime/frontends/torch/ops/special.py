"""Lowerings of special functions through arithmetic: gamma, error and Bessel functions, and the bits of a float.

Chebyshev series are of the functions that their docstrings name, computed with 40 digits. 16-bit floats are computed in float32.
"""

from __future__ import annotations

import math

from ....types import DType
from ...not_lowered import NotLowered
from .context import AtenLoweringContext, OpLowering, Results
from .reals import RealFunction, RealValue, in_wide_type

__all__ = ["LOWERINGS", "complementary_error", "is_negative", "log_gamma_positive"]

_I0_SMALL = (
    0.33839763720473803, -0.3046826723431984, 0.17162090152220877, -0.09490109704804764, 0.04930528423967071, -0.02373741480589947, 0.010546460394594998,
    -0.004324309995050576, 0.0016394756169413357, -0.0005763755745385824, 0.00018850288509584165, -5.754195010082104e-05, 1.6448448070728896e-05,
    -4.4167383584587505e-06, 1.1173875391201037e-06, -2.670793853940612e-07, 6.046995022541919e-08, -1.300025009986248e-08, 2.6598237246823866e-09,
    -5.189795601635263e-10, 9.675809035373237e-11, -1.726826291441556e-11, 2.95505266312964e-12, -4.856446783111929e-13, 7.676185498604936e-14,
    -1.1685332877993451e-14, 1.715391285555133e-15, -2.431279846547955e-16, 3.3307945188222384e-17, -4.4153416464793395e-18,
)  # fmt: skip
"""exp(-x) * i0(x) of x in [0, 8]."""
_I0_LARGE = (
    0.4022452055070544, 0.0033691164782556943, 6.889758346916825e-05, 2.8913705208347567e-06, 2.0489185894690638e-07, 2.266668990498178e-08,
    3.3962320257083865e-09, 4.94060238822497e-10, 1.1889147107846439e-11, -3.1499165279632416e-11, -1.3215811840447713e-11, -1.7941785315068062e-12,
    7.180124451383666e-13, 3.8527783827421426e-13, 1.54008621752141e-14, -4.150569347287222e-14, -9.554846698828307e-15, 3.811680669352621e-15,
    1.7725601330565245e-15, -3.425485619677142e-16, -2.827623980516646e-16, 3.461222867695658e-17, 4.465621420302078e-17, -4.8305044859640105e-18,
    -7.233180488043844e-18,
)  # fmt: skip
"""exp(-x) * sqrt(x) * i0(x) of 1 / x in [0, 1/8]."""
_I1_SMALL = (
    0.12629359322181682, -0.17641651835783406, 0.1026436586898471, -0.05294598120809499, 0.024726449030626516, -0.010564084894626197,
    0.004156422944312888, -0.0015135724506312532, 0.0005122859561685758, -0.00016176081582589674, 4.781565107550054e-05, -1.3273163656039436e-05,
    3.4702513081376785e-06, -8.568720264695455e-07, 2.0032947535521353e-07, -4.445059128796328e-08, 9.381537386495773e-09, -1.8872497517228294e-09,
    3.625590281552117e-10, -6.663489723502027e-11, 1.1736186298890901e-11, -1.9839743977649436e-12, 3.223793365945575e-13, -5.042185504727912e-14,
    7.600684294735408e-15, -1.1055969477353862e-15, 1.5536319577362005e-16, -2.111421214358166e-17, 2.7779141127610464e-18,
)  # fmt: skip
"""exp(-x) * i1(x) / x of x in [0, 8]."""
_I1_LARGE = (
    0.38928811750914005, -0.009761097491361469, -0.00011058893876262371, -3.882564808877691e-06, -2.512236237870209e-07, -2.6314688468895196e-08,
    -3.835380385964237e-09, -5.589743462196584e-10, -1.8974958123505413e-11, 3.2526035830154884e-11, 1.4125807436613782e-11, 2.0356285441470896e-12,
    -7.198551776245908e-13, -4.0835511110921974e-13, -2.1015418427726643e-14, 4.2724400167119517e-14, 1.0420276984128802e-14, -3.814403072437007e-15,
    -1.8803547755107805e-15, 3.30820231092085e-16, 2.9626289976460157e-16, -3.209525921991637e-17, -4.6503053684947827e-17, 4.414348323093937e-18,
    7.517296311011398e-18, -9.314178870907263e-19, -1.2421932752759928e-18,
)  # fmt: skip
"""exp(-x) * sqrt(x) * i1(x) of 1 / x in [0, 1/8]."""
_ERFCX = (
    1.1775789345674017, -0.004590054580646478, -0.08424913336651792, 0.05920993999819189, -0.026658668435305753, 0.009074997670705265,
    -0.002413163540417608, 0.0004907758365258086, -6.916973302501207e-05, 4.13902798607301e-06, 7.74038306619849e-07, -2.1886401049234397e-07,
    1.076499946567091e-08, 4.521959811218287e-09, -7.754400208831351e-10, -6.318088340886684e-11, 2.86879501093067e-11, 1.9455868545777347e-13,
    -9.65469674843344e-13, 3.25254814814874e-14, 3.3478119482868056e-14, -1.864562880419313e-15, -1.2507950530688648e-15, 7.418235256624044e-17,
    5.068148904796111e-17,
)  # fmt: skip
"""(1 + 2x) * erfcx(x) of (x - 3.75) / (x + 3.75), for x >= 0."""
_LGAMMA = (
    0.48362763659842517, 0.22408351337696908, -0.016061611364725618, 0.0016796351005504537, -0.000206207082576848, 2.7619482587698902e-05,
    -3.902432064395172e-06, 5.712600238782988e-07, -8.57232441585347e-08, 1.3098706178370361e-08, -2.0291174319191596e-09, 3.177019404112652e-10,
    -5.0168902255267044e-11, 7.977607508944761e-12, -1.2759320707466868e-12, 2.0507506001786822e-13, -3.309998326505828e-14, 5.362087191185866e-15,
    -8.714427500704616e-16, 1.4203170417419452e-16, -2.3208252786405174e-17,
)  # fmt: skip
"""lgamma(2 + x) / x of x in [-0.5, 1]."""
_NDTRI_CENTRAL = (
    2.75626240773562, 0.2762559100066958, 0.030207156709674277, 0.004124957243077576, 0.000626201371068278, 0.00010112940123524067,
    1.7007480612069465e-05, 2.9431496228783427e-06, 5.202354291607284e-07, 9.347554480275329e-08, 1.701559969437519e-08, 3.1303632648441214e-09,
    5.809730753368261e-10, 1.0862533348615106e-10, 2.04385966455798e-11, 3.866716242507591e-12, 7.350256475202629e-13, 1.4030836200438666e-13,
    2.688310341937328e-14, 5.1679344407063756e-15, 9.964365188597695e-16, 1.9264240320283887e-16, 3.733495752184155e-17,
)  # fmt: skip
"""ndtri(0.5 + y) / y of y * y in [0, 9/64]."""
_NDTRI_TAIL = (
    1.0323738340148971, 0.07255464837448264, -0.001044276659135336, -0.00011057060922319904, 5.264914442301038e-05, -1.6126373143885156e-05,
    4.24074817680432e-06, -1.035141917428997e-06, 2.464825866558015e-07, -5.918235741573259e-08, 1.4585713938895267e-08, -3.706647235699129e-09,
    9.67966568445924e-10, -2.5822724711374293e-10, 7.002080033211766e-11, -1.923711457746276e-11, 5.3451947625850664e-12, -1.5005386530215092e-12,
    4.2525805368601176e-13, -1.2157759092208812e-13, 3.503610653766156e-14, -1.0169776280334677e-14, 2.9712387491616838e-15, -8.732286753111611e-16,
    2.580205353003843e-16, -7.661633112439576e-17, 2.285393855197455e-17, -6.845828976056115e-18,
)  # fmt: skip
"""(x - log(x) / x + ndtri(p)) * x with x = sqrt(-2 log(p)), of 1 / x in [1/8, 1/2]."""
_NDTRI_FAR = (
    0.9403940828842694, 0.01797714885093382, 0.0007204861229618141, -0.00015515924440180946, 2.766990183752755e-05, -5.2871863320761524e-06,
    1.1257975486215228e-06, -2.63130441947549e-07, 6.598571696792872e-08, -1.7454474989197393e-08, 4.813437226308787e-09, -1.3723843993819895e-09,
    4.020765183199371e-10, -1.2049092786599042e-10, 3.680244733303348e-11, -1.1425423829283465e-11, 3.5973396421448492e-12, -1.1466389375188485e-12,
    3.694619836156521e-13, -1.201932983237028e-13, 3.9437800554584216e-14, -1.304035200987268e-14, 4.3419726849707105e-15, -1.4548813696975604e-15,
    4.903082054861274e-16, -1.66111906669975e-16, 5.655056653995449e-17, -1.9338107422966607e-17, 6.6402800244849165e-18,
)  # fmt: skip
"""The same of 1 / x in [1/40, 1/8]."""
_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156, -3617 / 122400)
"""Coefficients of 1/x, 1/x**3 and so on in lgamma(x) - (x - 0.5) * log(x) + x - log(2 pi) / 2."""
_DIGAMMA = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)
"""Coefficients of 1/x**2, 1/x**4 and so on in log(x) - 1 / (2x) - digamma(x)."""
_TRIGAMMA = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6)
"""Coefficients of 1/x**3, 1/x**5 and so on in trigamma(x) - 1 / x - 1 / (2 x**2)."""

_MAX_ORDER = 10
"""Maximum order of polygamma: the tail of its series converges for these."""


# ── error functions ──


def _exp_square(x: RealValue, sign: float) -> RealValue:
    """Return exp(sign * x * x) for |x| <= 32. The square of x is exact in two parts, so that its rounding is not magnified."""
    part = (x * 16.0).do("round") / 16.0
    rest = (x - part) * (x + part)
    return (part * part * sign).do("exp") * (rest * sign).do("exp")


def _erfcx_positive(x: RealValue) -> RealValue:
    near = x.do("clamp", None, 1e18)
    return ((near - 3.75) / (near + 3.75)).chebyshev(-1.0, 1.0, _ERFCX) / (x * 2.0 + 1.0)


def complementary_error(x: RealValue) -> RealValue:
    """Return 1 - erf(x) without cancellation."""
    size = x.do("abs")
    near = size.do("clamp", None, 32.0)
    tail = _exp_square(near, -1.0) * _erfcx_positive(near)
    far = tail.where(x.do("gt", 0.0), -(tail - 2.0))
    return (-(x.do("erf") - 1.0)).where(size.do("lt", 0.5), far)


def _erfcx(x: RealValue) -> RealValue:
    positive = _erfcx_positive(x.do("abs"))
    negative = _exp_square(x.do("clamp", -32.0, 0.0), 1.0) * 2.0 - positive
    return negative.where(x.do("lt", 0.0), positive)


def _ndtri_central(y: RealValue) -> RealValue:
    """Return ndtri(0.5 + y) / y, for |y| <= 3/8."""
    return (y * y).chebyshev(0.0, 9 / 64, _NDTRI_CENTRAL)


def _ndtri_tail(q: RealValue) -> RealValue:
    """Return -ndtri(q), for q <= exp(-2)."""
    x = (q.do("log") * -2.0).do("sqrt")
    z = x.dividing(1.0)
    series = z.chebyshev(1 / 40, 1 / 8, _NDTRI_FAR).where(
        x.do("gt", 8.0), z.chebyshev(1 / 8, 1 / 2, _NDTRI_TAIL)
    )
    return x.where(x.do("isinf"), x - (x.do("log") + series) * z)


def _ndtri(p: RealValue) -> RealValue:
    upper = p.do("gt", 1.0 - math.exp(-2.0))
    q = (-(p - 1.0)).where(upper, p)
    y = q - 0.5
    tail = _ndtri_tail(q)
    return (y * _ndtri_central(y)).where(q.do("gt", math.exp(-2.0)), tail.where(upper, -tail))


def _erfinv(y: RealValue) -> RealValue:
    """Return ndtri((1 + y) / 2) / sqrt(2). Near 1 and -1 it is that of (1 - |y|) / 2, which has no rounding error."""
    q = -(y.do("abs") - 1.0) * 0.5
    central = y * (_ndtri_central(y * 0.5) * math.sqrt(0.125))
    tail = y.do("sign") * _ndtri_tail(q) * math.sqrt(0.5)
    return central.where(q.do("gt", math.exp(-2.0)), tail)


# ── gamma functions ──


def _sin_pi(x: RealValue) -> RealValue:
    """Return sin(pi * x) up to its sign; exact zeros at integers."""
    return ((x - x.do("round")) * math.pi).do("sin")


def log_gamma_positive(x: RealValue) -> RealValue:
    """Return lgamma of positive numbers. From 8 on Stirling's series is used; below, a product moves the argument into [1.5, 3].

    The argument less 2 is exact near 1 and 2, so that the result, which is small there, is too.
    """
    rest, product = x - 2.0, (x * 0.0) + 1.0
    for _ in range(6):
        larger, lower = rest.do("gt", 1.0), rest - 1.0
        product, rest = (product * (rest + 1.0)).where(larger, product), lower.where(larger, rest)
    first, second = x.do("lt", 1.5), x.do("lt", 0.5)
    rest = x.where(second, (x - 1.0).where(first, rest))
    divisor = (x * (x + 1.0)).where(second, x)
    logs = divisor.where(first, product).do("log")
    near = rest * rest.chebyshev(-0.5, 1.0, _LGAMMA) + (-logs).where(first, logs)
    inverse = x.dividing(1.0)
    series = inverse * (inverse * inverse).horner(_STIRLING[::-1])
    far = (x - 0.5) * (x.do("log") - 1.0) + (0.5 * math.log(2 * math.pi) - 0.5) + series
    return near.where(x.do("lt", 8.0), far)


def _lgamma(x: RealValue) -> RealValue:
    size = x.do("abs")
    positive = log_gamma_positive(size)
    sine = (_sin_pi(size).do("abs") / math.pi).do("log")
    reflected = positive.where(positive.do("isinf"), -(size.do("log") + sine) - positive)
    result = reflected.where(x.do("lt", 0.0), positive)
    return size.where(x.do("isinf"), result)


def _digamma(x: RealValue) -> RealValue:
    """Return digamma: terms 1 / x move the argument above 8; negative numbers are reflected."""
    negative = x.do("lt", 0.0)
    y = (-(x - 1.0)).where(negative, x)
    small = y.do("lt", 8.0)
    steps = y.dividing(-1.0)
    for i in range(1, 8):
        steps = steps - (y + float(i)).dividing(1.0)
    far = (y + 8.0).where(small, y)
    inverse = far.dividing(1.0)
    square = inverse * inverse
    positive = far.do("log") - inverse * 0.5 - square * square.horner(_DIGAMMA[::-1])
    positive = (positive + steps).where(small, positive)
    part = x - x.do("round")
    reflected = positive - (part * math.pi).do("tan").dividing(math.pi)
    result = reflected.where(negative, positive)
    return (part * math.nan).where(negative.do("logical_and", part.do("eq", 0.0)), result)


def _trigamma(x: RealValue) -> RealValue:
    small = x.do("lt", 0.5)
    y = (-(x - 1.0)).where(small, x)
    steps = (y * y).dividing(1.0)
    for i in range(1, 8):
        step = y + float(i)
        steps = steps + (step * step).dividing(1.0)
    far = y + 8.0
    inverse = far.dividing(1.0)
    square = inverse * inverse
    positive = steps + inverse + square * 0.5 + square * inverse * square.horner(_TRIGAMMA[::-1])
    sine = _sin_pi(x)
    return (-(positive - (sine * sine).dividing(math.pi**2))).where(small, positive)


def _higher_gamma(order: int) -> RealFunction:
    """Return the polygamma function of an order above 1: a Hurwitz zeta function, summed by Euler and Maclaurin; negative numbers are
    reflected, by a polynomial of cot(pi * x). Poles have the sign that PyTorch gives them.
    """
    sign, power, scale = -((-1) ** order), order + 1, math.factorial(order)
    polynomial = [
        0,
        1,
    ]  # of cot, lowest power first; its derivative by pi * x follows from that of cot, -(1 + cot ** 2)
    for _ in range(order):
        slope = [k * c for k, c in enumerate(polynomial)][1:]
        polynomial = [-a - b for a, b in zip([*slope, 0, 0], [0, 0, *slope], strict=True)]

    def function(x: RealValue) -> RealValue:
        negative = x.do("lt", 0.0)
        y = (-(x - 1.0)).where(negative, x)
        total = y.do("pow", -float(power))
        for i in range(1, 10):
            total = total + (y + float(i)).do("pow", -float(power))
        far = y + 10.0
        inverse, base = far.dividing(1.0), far.do("pow", -float(power))
        series, factor = [1 / order, 0.5], float(power)
        for j, bernoulli in enumerate(_TRIGAMMA, 1):
            series += [bernoulli * factor / math.factorial(2 * j), 0.0]
            factor *= (power + 2 * j - 1) * (power + 2 * j)
        tail = far * (1 / order) + inverse.horner(series[:0:-1])
        positive = (total + base * tail) * float(sign * scale)
        part = x - x.do("round")
        size = part.do("abs")  # near 1/2, 1/2 - size is exact, but pi / 2 is not
        near_half = part.do("sign") * (-(size - 0.5) * math.pi).do("tan")
        cotangent = near_half.where(size.do("gt", 0.25), (part * math.pi).do("tan").dividing(1.0))
        slopes = cotangent.horner([float(c) for c in polynomial[::-1]]) * math.pi**power
        result = (positive * float(-sign) - slopes).where(negative, positive)
        pole = part.do("eq", 0.0).do("logical_and", x.do("le", 0.0)).do("logical_or", x.do("eq", -math.inf))
        result = (x - x).where(x.do("eq", math.inf), result)  # NaN, as in PyTorch
        infinite = x.do("eq", x).do("where", sign * math.inf, x)
        return infinite.where(pole, result)

    return function


def _polygamma(n: AtenLoweringContext) -> Results:
    order = n["n"]
    if order not in range(_MAX_ORDER + 1):
        raise NotLowered(f"only orders 0 to {_MAX_ORDER} are supported, not {order}")
    result = n.out().dtype
    wide = DType.FLOAT32 if result.bits < 32 else result
    x = RealValue(n, n.cast(n.t("self"), wide))
    function = (_digamma, _trigamma)[order] if order < 2 else _higher_gamma(order)
    return n.cast(function(x).value, result)


# ── Bessel functions ──


def _bessel(order: int, *, scaled: bool) -> RealFunction:
    """Return the modified Bessel function of the first kind; scaled: times exp(-|x|)."""

    def function(x: RealValue) -> RealValue:
        size = x.do("abs")
        near = size.chebyshev(0.0, 8.0, _I1_SMALL if order else _I0_SMALL)
        near = near * size if order else near
        inverse = size.dividing(1.0)
        far = inverse.chebyshev(0.0, 1 / 8, _I1_LARGE if order else _I0_LARGE) / size.do("sqrt")
        result = near.where(size.do("le", 8.0), far)
        result = result if scaled else result * size.do("exp")
        return (-result).where(x.do("lt", 0.0), result) if order else result

    return function


# ── parts of a float ──


def _signbit(n: AtenLoweringContext) -> Results:
    return is_negative(n, n.x)


def is_negative(n: AtenLoweringContext, x: str) -> str:
    """Return whether the sign bit is set; of -0.0 and some NaN it is."""
    dtype = n.spec(x).dtype
    if not dtype.is_float:
        return str(n.b.lt(x, 0)) if dtype is not DType.BOOL else str(n.b.logical_and(x, n.b.logical_not(x)))
    words = {16: DType.INT16, 32: DType.INT32, 64: DType.INT64}
    if dtype.bits not in words:
        raise NotLowered(f"{dtype.value} is not supported")
    return str(n.b.lt(n.b.bitcast(x, dtype=words[dtype.bits]), 0))


def _copysign(n: AtenLoweringContext) -> Results:
    result, other = n.out().dtype, n.operand("other")
    size = str(n.b.abs(n.cast(n.x, result)))
    if not isinstance(other, str):
        return str(n.b.neg(size)) if math.copysign(1.0, 0.0 if other is None else other) < 0 else size
    return str(n.b.where(is_negative(n, other), n.b.neg(size), size))


def _ldexp(n: AtenLoweringContext) -> Results:
    """Lower ldexp. As in PyTorch, only exponents of a float type, and integers for x, may overflow in 2 ** other alone."""
    result, other = n.out().dtype, n.t("other")
    kind = n.spec(other).dtype
    if kind.is_float or not n.spec(n.x).dtype.is_float:
        power = str(n.b.pow(2.0, other if kind.is_float else n.cast(other, DType.FLOAT32)))
        return str(n.b.mul(n.cast(n.x, result), n.cast(power, result)))
    x = RealValue(n, n.cast(n.x, DType.FLOAT64))
    exponent = RealValue(n, n.cast(other, DType.FLOAT64))
    if result is not DType.FLOAT64:  # exact in float64, so that it is rounded once
        return n.cast((x * _power_of_two(exponent.do("clamp", -300.0, 300.0))).value, result)
    exponent = exponent.do("clamp", -2100.0, 2100.0)
    for _ in range(2):  # a subnormal number, which is rounded, is followed only by a factor that makes it 0
        step = (exponent * 0.0 - 969.0).where(exponent.do("lt", -1022.0), exponent.do("clamp", None, 1023.0))
        x, exponent = x * _power_of_two(step), exponent - step
    return (x * _power_of_two(exponent)).value


def _power_of_two(exponent: RealValue) -> RealValue:
    """Return 2 ** exponent exactly, of integers in [-1022, 1023] in float64. A cast to float32 rounds the errors of ``pow`` away."""
    n = exponent.n

    def small(part: RealValue) -> RealValue:
        power = n.cast(str(n.b.pow(2.0, part.value)), DType.FLOAT32)
        return RealValue(n, n.cast(power, DType.FLOAT64))

    part = (exponent / 16.0).do("trunc")
    power = small(part)
    for _ in range(4):
        power = power * power
    return power * small(exponent - part * 16.0)


LOWERINGS: dict[str, OpLowering] = {
    "copysign.Scalar": _copysign,
    "copysign.Tensor": _copysign,
    "digamma": in_wide_type(_digamma),
    "erfc": in_wide_type(complementary_error),
    "erfinv": in_wide_type(_erfinv),
    "i0": in_wide_type(_bessel(0, scaled=False)),
    "ldexp.Tensor": _ldexp,
    "lgamma": in_wide_type(_lgamma),
    "polygamma": _polygamma,
    "signbit": _signbit,
    "special_erfcx": in_wide_type(_erfcx),
    "special_i0e": in_wide_type(_bessel(0, scaled=True)),
    "special_i1": in_wide_type(_bessel(1, scaled=False)),
    "special_i1e": in_wide_type(_bessel(1, scaled=True)),
    "special_modified_bessel_i0": in_wide_type(_bessel(0, scaled=False)),
    "special_modified_bessel_i1": in_wide_type(_bessel(1, scaled=False)),
    "special_ndtri": in_wide_type(_ndtri),
}
