"""Lowerings of the incomplete gamma functions, through arithmetic: a series, a continued fraction, and Temme's expansion for a > 20."""

from __future__ import annotations

import math

from ....types import DType
from .context import AtenLoweringContext, OpLowering, Results
from .reals import RealValue
from .special import complementary_error, log_gamma_positive

__all__ = ["LOWERINGS"]

_TEMME = (
    (
        -0.3333333333333333, 0.08333333333333333, -0.014814814814814815, 0.0011574074074074073, 0.0003527336860670194, -0.0001787551440329218,
        3.919263178522438e-05, -2.185448510679992e-06, -1.85406221071516e-06, 8.296711340953087e-07, -1.7665952736826078e-07, 6.707853543401498e-09,
        1.0261809784240309e-08, -4.382036018453353e-09, 9.14769958223679e-10, -2.5514193994946248e-11, -5.830772132550426e-11, 2.4361948020667415e-11,
        -5.0276692801141755e-12, 1.1004392031956135e-13, 3.371763262400985e-13, -1.392388722418162e-13,
    ),
    (
        -0.001851851851851852, -0.003472222222222222, 0.0026455026455026454, -0.0009902263374485596, 0.00020576131687242798, -4.018775720164609e-07,
        -1.8098550334489977e-05, 7.64916091608111e-06, -1.6120900894563446e-06, 4.647127802807434e-09, 1.378633446915721e-07, -5.752545603517705e-08,
        1.1951628599778148e-08, -1.7543241719747647e-11, -1.0091543710600413e-09, 4.162792991842583e-10, -8.56390702649298e-11, 6.067215101604758e-14,
        7.1624989648114856e-12, -2.933186643771437e-12,
    ),
    (
        0.004133597883597883, -0.0026813271604938273, 0.0007716049382716049, 2.0093878600823047e-06, -0.0001073665322636516, 5.2923448829120125e-05,
        -1.2760635188618728e-05, 3.423578734096138e-08, 1.3721957309062934e-06, -6.298992138380055e-07, 1.4280614206064242e-07,
        -2.0477098421990866e-10, -1.409252991086752e-08, 6.228974084922022e-09, -1.3670488396617114e-09, 9.428356159014678e-13,
        1.2872252400089318e-10, -5.5645956134363323e-11, 1.197593554636698e-11,
    ),
    (
        0.0006494341563786008, 0.00022947209362139917, -0.0004691894943952557, 0.00026772063206283885, -7.561801671883977e-05, -2.396505113867297e-07,
        1.1082654115347302e-05, -5.6749528269915965e-06, 1.4230900732435883e-06, -2.7861080291528143e-11, -1.6958404091930278e-07,
        8.099464905388083e-08, -1.9111168485973655e-08, 2.3928620439808118e-12, 2.0620131815488797e-09, -9.460496661855133e-10,
        2.1541049775774907e-10,
    ),
    (
        -0.0008618882909167117, 0.0007840392217200666, -0.0002990724803031902, -1.4638452578843418e-06, 6.641498215465122e-05, -3.968365047179435e-05,
        1.1375726970678419e-05, 2.507497226237533e-10, -1.6954149536558305e-06, 8.907507532205309e-07, -2.292934834000805e-07, 2.956794137544049e-11,
        2.8865829742708783e-08, -1.4189739437803219e-08, 3.4463580499464896e-09,
    ),
    (
        -0.00033679855336635813, -6.972813758365857e-05, 0.0002772753244959392, -0.00019932570516188847, 6.797780477937208e-05, 1.419062920643967e-07,
        -1.3594048189768693e-05, 8.018470256334202e-06, -2.291481176508095e-06, -3.252473551298454e-10, 3.4652846491085265e-07,
        -1.8447187191171344e-07, 4.8240967037894184e-08,
    ),
    (
        0.0005313079364639922, -0.0005921664373536939, 0.0002708782096718045, 7.902353232660328e-07, -8.153969367561969e-05, 5.61168275310625e-05,
        -1.8329116582843375e-05, -3.0796134506033047e-09, 3.465155368803609e-06, -2.0291327396058603e-06, 5.788792863149004e-07,
    ),
    (
        0.00034436760689237765, 5.171790908260592e-05, -0.00033493161081142234, 0.0002812695154763237, -0.00010976582244684731,
        -1.2741009095484485e-07, 2.7744451511563645e-05, -1.8263488805711332e-05, 5.7876949497350525e-06, 4.93875893393627e-10,
        -1.0595367014026043e-06,
    ),
    (
        -0.0006526239185953094, 0.0008394987206720873, -0.000438297098541721, -6.969091458420552e-07, 0.00016644846642067547, -0.00012783517679769218,
        4.629953263691304e-05, 4.557909867922708e-09, -1.0595271125805195e-05,
    ),
    (
        -0.0005967612901927463, -7.204895416020011e-05, 0.0006782308837667328, -0.0006401475260262758, 0.00027750107634328704, 1.819700838046515e-07,
        -8.479507117068503e-05,
    ),
    (
        0.0013324454494800656, -0.0019144384985654776, 0.0011089369134596636,
    ),
)  # fmt: skip
"""Coefficients of powers of eta, for each power of 1 / a (DLMF 8.12.12)."""
_LOG_REST = (
    0.520166357142166, -0.19750145738016847, 0.04223252254153672, -0.009642453188568767, 0.002294982546628302, -0.0005621383569409037,
    0.00014061749423895561, -3.5744566520246915e-05, 9.201965305580543e-06, -2.3933088125751453e-06, 6.277510082913946e-07, -1.6582750833921598e-07,
    4.4070467644484186e-08, -1.177327479137047e-08, 3.1594581435059026e-09, -8.512443000036669e-10, 2.301568333797625e-10, -6.242457485834528e-11,
    1.6978879093632398e-11, -4.6298230477017585e-12, 1.265373521399066e-12, -3.465635331298292e-13, 9.509966287976352e-14, -2.6142003485566586e-14,
    7.197843000757387e-15, -1.984797255650348e-15, 5.480658207189758e-16, -1.515338289124789e-16, 4.1947747275985105e-17, -1.1625067360628697e-17,
    3.225068989675342e-18, -8.955936857370807e-19, 2.489349298932071e-19, -6.925322800466586e-20,
)  # fmt: skip
"""(x - log(1 + x)) / x ** 2 of x in [-0.5, 0.625]."""

_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680)
"""Coefficients of 1/a, 1/a**3 and so on in the logarithm of gamma(a) over its first approximation."""
_LARGE = 20.0
"""Temme's expansion is used above."""
_LOW, _HIGH = -0.5, 0.625
"""Bounds of x / a - 1 for Temme's expansion. There |eta| is below 0.66."""
_SERIES_TERMS = {DType.FLOAT32: 30, DType.FLOAT64: 54}
_FRACTION_TERMS = {DType.FLOAT32: 30, DType.FLOAT64: 80}
"""Terms for the smallest arguments outside Temme's range, x = a + 1; the series needs most at a = 20, the fraction at a = 0."""


def _temme(a: RealValue, eta: RealValue, wide: DType) -> RealValue:
    """Return the sum of ``_TEMME``, of which terms below the precision of the type are left out."""
    least = 1e-9 if wide is DType.FLOAT32 else 0.0
    rows = []
    for k, row in enumerate(_TEMME):
        terms = [c for n, c in enumerate(row) if abs(c) * 0.66**n / _LARGE**k >= least]
        rows.append(row[: len(terms)])
    inverse, total = a.dividing(1.0), eta * 0.0
    for row in reversed([r for r in rows if r]):
        line = eta.horner(row[::-1]) if len(row) > 1 else eta * 0.0 + row[0]
        total = total * inverse + line
    return total


def _incomplete(n: AtenLoweringContext, *, upper: bool) -> Results:
    result = n.out().dtype
    wide = DType.FLOAT32 if result.bits < 32 else result
    a, x = (RealValue(n, n.cast(n.t(name), wide)) for name in ("self", "other"))

    def number(value: float) -> RealValue:
        return RealValue(n, n.like(value, wide))

    is_large = a.do("gt", _LARGE)
    shift = (x - a) / a
    near = shift.do("ge", _LOW).do("logical_and", shift.do("le", _HIGH))
    inside = number(0.0)
    rest = inside.where(near.do("logical_not"), shift)
    half_square = rest.chebyshev(_LOW, _HIGH, _LOG_REST)
    exponent = (rest * rest * half_square).where(near, shift - (x / a).do("log"))  # x / a - 1 - log(x / a)
    size = (a * (2 * math.pi)).do("sqrt")
    inverse = a.dividing(1.0)
    stirling = inverse * (inverse * inverse).horner(_STIRLING[::-1])
    large_factor = (-(a * exponent) - stirling).do("exp") / size
    small_factor = (a * x.do("log") - x - log_gamma_positive(a + 1.0)).do("exp")
    factor = large_factor.where(is_large, small_factor)  # x ** a * exp(-x) / gamma(a + 1)

    series = a * 0.0 + x * 0.0 + 1.0
    for k in range(_SERIES_TERMS[wide], 0, -1):
        series = series * (x / (a + float(k))) + 1.0
    lower_part = factor * series
    from_a = x - a
    fraction = from_a * 0.0
    for k in range(_FRACTION_TERMS[wide], 0, -1):
        fraction = (-(a - float(k)) * float(k)) / (from_a + float(2 * k + 1) - fraction)
    upper_part = factor * a / (from_a + 1.0 - fraction)
    is_series = from_a.do("lt", 1.0)
    if upper:
        apart = (-(lower_part - 1.0)).where(is_series, upper_part)
    else:
        apart = lower_part.where(is_series, -(upper_part - 1.0))

    eta = rest * (half_square * 2.0).do("sqrt")
    correction = (-(a * exponent)).do("exp") / size * _temme(a, eta, wide)
    scaled = eta * (a * 0.5).do("sqrt")
    together = complementary_error(scaled if upper else -scaled) * 0.5
    together = together + correction if upper else together - correction
    y = together.where(is_large.do("logical_and", near), apart)

    none, whole, nan = number(float(upper)), number(float(not upper)), number(math.nan)
    y = none.where(x.do("eq", 0.0), y)
    y = whole.where(a.do("eq", 0.0), y)
    y = whole.where(x.do("eq", math.inf), y)
    y = none.where(a.do("eq", math.inf), y)
    both = [a.do("eq", v).do("logical_and", x.do("eq", v)) for v in (0.0, math.inf)]
    negative = a.do("lt", 0.0).do("logical_or", x.do("lt", 0.0))
    unknown = (
        both[0].do("logical_or", both[1]).do("logical_or", negative).do("logical_or", (a + x).do("isnan"))
    )
    return n.cast(nan.where(unknown, y).value, result)


LOWERINGS: dict[str, OpLowering] = {
    "igamma": lambda n: _incomplete(n, upper=False),
    "igammac": lambda n: _incomplete(n, upper=True),
}
