"""Minimax polynomials with machine coefficients: where the constants of `flambeau.kernel.vmath` come from.

Grid-restricted Remez exchange in 60 digits (Remez 1934; Muller, Elementary Functions, ch. 3). Coefficients are rounded
one after another, lowest power first, and the rest are fitted again, so that rounding costs almost nothing.

    python benchmarks/minimax.py "(expm1(x)-x)/x**2" -0.35 0.35 --powers 0:4 --bits 24 --weight "x*x/exp(x)"
    python benchmarks/minimax.py "besselj(0,sqrt(32*(x+1)))" -1 1 --powers 0:15 --interpolate

    python benchmarks/minimax.py "erf(x)" 0 0 --pieces 1075/4096 --last 1 --powers 0:5

Special functions, which need no last half ulp, are interpolated at Chebyshev points instead (`interpolate`). Tables of 16 polynomials
(`pieces`) are fitted piece by piece and rounded to f32 afterwards.

May not know: flambeau. Needs mpmath. Entry: `fit`, `interpolate`, `pieces`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

import mpmath
from mpmath import mp, mpf

mp.dps = 60


def round_to_bits(value: mpf, bits: int) -> mpf:
    """The nearest number with `bits` bits of mantissa."""
    if value == 0:
        return mpf(0)
    mantissa, exponent = mpmath.frexp(value)
    return mpmath.ldexp(mpmath.nint(mpmath.ldexp(mantissa, bits)), exponent - bits)


def grid(lo: mpf, hi: mpf, count: int) -> list[mpf]:
    """Chebyshev points with both ends, ascending."""
    return [(lo + hi) / 2 - (hi - lo) / 2 * mpmath.cos(mpmath.pi * i / (count - 1)) for i in range(count)]


def remez(values: Sequence[mpf], basis: Sequence[Sequence[mpf]], weights: Sequence[mpf]) -> tuple[list[mpf], mpf]:
    """Coefficients c that minimise max |values - basis c| * weights over the grid, and that maximum."""
    count, terms = len(values), len(basis[0])
    floor = max(weights) / 1000
    usable = [i for i in range(count) if weights[i] > floor]
    picks = [usable[round((len(usable) - 1) * i / terms)] for i in range(terms + 1)]
    best, chosen = mpf("inf"), [mpf(0)] * terms
    for _ in range(60):
        matrix = mpmath.matrix(terms + 1, terms + 1)
        right = mpmath.matrix(terms + 1, 1)
        for row, p in enumerate(picks):
            for j in range(terms):
                matrix[row, j] = basis[p][j] * weights[p]
            matrix[row, terms] = (-1) ** row
            right[row] = values[p] * weights[p]
        solution = mpmath.lu_solve(matrix, right)
        c = [solution[j] for j in range(terms)]
        errors = [(v - mpmath.fdot(c, b)) * w for v, b, w in zip(values, basis, weights, strict=True)]
        worst = max(abs(e) for e in errors)
        if worst < best:
            best, chosen = worst, c
        if best < abs(solution[terms]) * (1 + mpf(10) ** -3):
            break
        peaks: list[int] = []  # one extremum for every run of equal sign
        for i, e in enumerate(errors):
            if peaks and (errors[peaks[-1]] >= 0) == (e >= 0):
                if abs(e) > abs(errors[peaks[-1]]):
                    peaks[-1] = i
            else:
                peaks.append(i)
        while len(peaks) > terms + 1:  # drop the smallest: an end, or two neighbours so that signs still alternate
            if len(peaks) == terms + 2:
                peaks.pop(0 if abs(errors[peaks[0]]) < abs(errors[peaks[-1]]) else -1)
                continue
            small = min(range(len(peaks) - 1), key=lambda i: max(abs(errors[peaks[i]]), abs(errors[peaks[i + 1]])))
            del peaks[small : small + 2]
        if len(peaks) < terms + 1 or peaks == picks:
            break
        picks = peaks
    return chosen, best


def fit(
    f: Callable[[mpf], mpf],
    lo: float,
    hi: float,
    powers: Sequence[int],
    *,
    weight: Callable[[mpf], mpf] = lambda x: mpf(1),
    bits: Sequence[int] | int = 53,
    fixed: dict[int, float] | None = None,
    points: int = 0,
) -> tuple[list[float], float]:
    """Coefficients of x**powers for f on [lo, hi], rounded to `bits`, and the largest weighted error."""
    fixed = fixed or {}
    points = points or 24 * len(powers) + 101
    xs = grid(mpf(lo), mpf(hi), points)
    xs = [x if x != 0 else mpf(10) ** -30 for x in xs]
    rest = [f(x) - mpmath.fsum(mpf(c) * x**p for p, c in fixed.items()) for x in xs]
    weights = [abs(weight(x)) for x in xs]
    widths = [bits] * len(powers) if isinstance(bits, int) else list(bits)
    done: list[mpf] = []
    left = list(powers)
    while left:
        c, error = remez(rest, [[x**p for p in left] for x in xs], weights)
        slack = [
            abs(v) * mpf(2) ** -w * max(abs(x**p) * g for x, g in zip(xs, weights, strict=True))
            for v, w, p in zip(c, widths[len(done) :], left, strict=True)
        ]
        count = len(left) if sum(slack) < error / 16 else 1  # rounding the others cannot be felt
        for head in c[:count]:
            head = round_to_bits(head, widths[len(done)])
            done.append(head)
            power = left.pop(0)
            rest = [r - head * x**power for r, x in zip(rest, xs, strict=True)]
    worst = max(abs(r * w) for r, w in zip(rest, weights, strict=True))
    return [float(c) for c in done], float(worst)


def interpolate(f: Callable[[mpf], mpf], count: int) -> tuple[list[float], float]:
    """Coefficients of 1, x, x^2 ... of the polynomial through f at `count` Chebyshev points of [-1, 1], and its relative error."""
    angles = [mpmath.pi * (2 * i + 1) / (2 * count) for i in range(count)]
    values = [f(mpmath.cos(a)) for a in angles]
    sums = [mpmath.fsum(v * mpmath.cos(j * a) for v, a in zip(values, angles, strict=True)) for j in range(count)]
    series = [s * (2 if j else 1) / count for j, s in enumerate(sums)]
    before, now = [mpf(1)], [mpf(0), mpf(1)]  # Chebyshev polynomials by powers of x
    total = [mpf(0)] * count
    for c in series:
        for i, v in enumerate(before):
            total[i] += c * v
        following = [mpf(0), *(2 * v for v in now)]
        for i, v in enumerate(before):
            following[i] -= v
        before, now = now, following
    coefficients = [float(c) for c in total]
    middles = [-mpmath.cos(mpmath.pi * i / 96) for i in range(1, 96)]
    worst = max(abs(mpmath.polyval([mpf(c) for c in reversed(coefficients)], x) / f(x) - 1) for x in middles)
    return coefficients, float(worst)


def pieces(f: Callable[[mpf], mpf], width: mpf, degree: int, last: float) -> list[list[float]]:
    """Row j: coefficients of d**j in f(i width + d), |d| <= width / 2, i = 0 ... 15, errors relative to f.

    Piece 15 ends in `last` at its middle: arguments are bounded there. Where f(0) = 0, piece 0 has no constant."""
    columns = []
    for i in range(16):
        middle, half = width * i, float(width / 2)

        def moved(d: mpf, middle: mpf = middle) -> mpf:
            return f(middle + d)

        if i == 15:
            found = [last, *fit(moved, -half, -1e-9, [1, 2, 3], fixed={0: last})[0], *[0.0] * (degree - 3)]
        elif f(middle) == 0:
            found = [0.0, *fit(lambda d: f(d) / d, 1e-9, half, range(degree), weight=lambda d: d / f(d))[0]]
        else:
            found = fit(moved, -half if i else 0.0, half, range(degree + 1), weight=lambda d, g=moved: 1 / g(d))[0]
        columns.append([float(round_to_bits(mpf(c), 24)) for c in found])
    return [list(row) for row in zip(*columns, strict=True)]


def show(name: str, coefficients: Sequence[float], error: float) -> None:
    body = ", ".join(map(repr, coefficients))
    print(f"{name} = ({body})  # error 2^{float(mpmath.log(error, 2)):.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("function", help="expression in x, mpmath's names")
    parser.add_argument("lo", type=float)
    parser.add_argument("hi", type=float)
    parser.add_argument("--powers", default="0:6", help="first:last[:step]")
    parser.add_argument("--weight", default="1", help="expression in x that multiplies the error")
    parser.add_argument("--bits", type=int, default=53)
    parser.add_argument("--pieces", default="", help="width of each of 16 pieces from 0 on")
    parser.add_argument("--last", type=float, default=0.0, help="value at the middle of the last piece")
    parser.add_argument("--fixed", default="", help="power=value,...")
    parser.add_argument(
        "--interpolate", action="store_true", help="at Chebyshev points of [-1, 1]; powers give the count"
    )
    a = parser.parse_args()
    first, last, *step = (int(p) for p in a.powers.split(":"))
    names = vars(mpmath)
    fixed = {int(p): float(v) for p, v in (part.split("=") for part in a.fixed.split(",") if part)}
    powers = [p for p in range(first, last + 1, *step) if p not in fixed]
    if a.pieces:
        for row in pieces(lambda x: eval(a.function, names, {"x": x}), mpmath.mpmathify(a.pieces), powers[-1], a.last):
            print(f"    ({', '.join(map(repr, row))}),")
        return
    if a.interpolate:
        show(a.function, *interpolate(lambda x: eval(a.function, names, {"x": x}), len(powers)))
        return
    show(
        a.function,
        *fit(
            lambda x: eval(a.function, names, {"x": x}),
            a.lo,
            a.hi,
            powers,
            bits=a.bits,
            fixed=fixed,
            weight=lambda x: mpf(eval(a.weight, names, {"x": x})),
        ),
    )


if __name__ == "__main__":
    main()
