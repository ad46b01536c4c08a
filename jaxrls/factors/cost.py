"""What a factorization and its sweep over λ take, by route: numbers held at once, and floating-point operations, from shapes alone.

Numbers are counted where they are most, and were fitted to what processes hold (benchmarks/memory.py); operations are those of the program as it is traced,
what is said twice once (benchmarks/counts.py), with those of decompositions as textbooks give them: 9n³ for eigenvectors, 6nr² + 20r³ for thin singular
vectors, n³/3 for Cholesky, 2n³/3 for an inverse of it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from jaxrls.factors.contract import COLUMNS_AT_ONCE, PROBES, lams_together
from jaxrls.factors.groups import groups_together
from jaxrls.factors.sides import ENTRIES_AT_ONCE
from jaxrls.kernels.distances import COLUMNS_A_PASS
from jaxrls.kernels.distances import FEW_COLUMNS as FEW_DIFFERENCES
from jaxrls.linalg.products import FEW_COLUMNS, PANELS
from jaxrls.rows.blocks import block_bytes, wide_block_size
from jaxrls.support.checks import memory_bytes

# Operations that a kernel's function of a distance counts for, between 2 and 13; those of many columns take about as much for lengths and sums.
PROFILE = 5
# Products with K before an iteration converges: tens, where landmarks are many enough.
STEPS = 40


class Cost(NamedTuple):
    """Numbers held at once, operations, and in words what most of the numbers are."""

    numbers: int | float
    flops: int | float
    words: str

    def beside(self, numbers: int | float, words: str = "") -> "Cost":
        """With other numbers held at the same time."""
        return Cost(self.numbers + numbers, self.flops, " and ".join(filter(None, (self.words, words))))

    def then(self, other: "Cost") -> "Cost":
        """One after the other: what the first held is free for the second."""
        larger = max(self, other, key=lambda part: part.numbers)
        return Cost(larger.numbers, self.flops + other.flops, larger.words)


@dataclass(frozen=True)
class Sizes:
    """n rows of d columns with r features, or landmarks; t targets, L values of λ (the chosen one not counted), groups of b rows, 1 where there are none.

    `probes` are random signs, where a diagonal is estimated.
    """

    n: int
    d: int
    r: int
    itemsize: int
    t: int = 1
    L: int = 100
    b: int = 1
    probes: int = PROBES
    weighted: bool = False
    given: bool = True  # whether features are the rows of X themselves, and not made, so that the kernel is their product
    kept: bool = True  # whether B is, on landmarks
    single: bool = False  # one value at one λ, and nothing kept
    gradient: bool = False  # and its derivatives
    variance: bool = False  # whether what variances take is kept
    intervals: bool = False  # whether every fit that leaves a row or group out is
    free: int = 0  # columns without penalty, the constant among them, where there are others
    rank: bool = False  # whether rows are left out in pairs, or, in groups, centred in each

    @property
    def block(self) -> int:
        """Numbers of one block of rows of K."""
        return min(self.n * self.r, max(block_bytes() // self.itemsize, 16 * self.r))

    @property
    def rows(self) -> int:
        """How many rows of features are in a block, with as many temporaries."""
        return wide_block_size(self.n, 2 * self.r * self.itemsize)

    @property
    def wide(self) -> int:
        """Numbers of such a block and its temporaries."""
        return 2 * self.r * self.rows

    @property
    def ragged(self) -> bool:
        """Whether blocks of rows leave some over, so that the whole ones are cut out of X as a copy."""
        return self.rows < self.n and self.n % self.rows > 0

    @property
    def columns(self) -> int:
        """λ × targets in flight."""
        return min(self.L * self.t, max(COLUMNS_AT_ONCE, self.t))

    @property
    def lams(self) -> int:
        """At how many λ there is work: all, and the chosen one anew where there are others."""
        return self.L + (self.L > 1)

    @property
    def value(self) -> int:
        """Operations of one value of the kernel: those of an inner product, or of differences in passes, which for many columns are twice a product's."""
        if self.given:
            return 2 * self.d
        if self.d <= FEW_DIFFERENCES:
            return 4 * self.d + PROFILE
        return 4 * COLUMNS_A_PASS * -(-self.d // COLUMNS_A_PASS) + 2 * PROFILE

    @property
    def kernel(self) -> int:
        """Operations of all entries between the rows and r others."""
        return self.n * self.r * self.value

    @property
    def symmetric(self) -> int | float:
        """Operations of ΦᵀΦ, of which PANELS block rows end at the diagonal."""
        share = (PANELS + 1) / (2 * PANELS) if self.r > PANELS * FEW_COLUMNS else 1
        return 2 * share * self.n * self.r**2

    @property
    def sweep(self) -> int:
        """Operations of leave-one-out at all λ, of leverages and labels, and of coefficients and residuals at the chosen one."""
        return 2 * self.n * self.r * ((self.L + 1) * (1 + self.t) + self.t)


def gram(s: Sizes) -> Cost:
    """K, which becomes its eigenvectors, and LAPACK's workspace of twice that; later U, its squares, and copies for products."""
    n2, weighted = s.n**2, 2 * s.n**3 * s.weighted
    eigh = Cost((7 if s.weighted else 4) * n2, s.kernel + 9 * s.n**3, "K, its eigenvectors and LAPACK's workspace")
    return eigh.then(Cost(3 * n2 + 2 * s.n * s.columns, s.sweep + weighted, "eigenvectors, their squares and λ × targets")).beside(
        2 * s.block
    )


def features(s: Sizes) -> Cost:
    """Φ, centred Φ, U and a copy for its products, and LAPACK's workspace."""
    long, short = max(s.n, s.r), min(s.n, s.r)
    held = (4 + 0.5 * s.weighted) * s.n * s.r + 2 * short**2 + s.n * s.columns
    return Cost(held, 6 * long * short**2 + 20 * short**3 + s.sweep, "features, singular vectors and LAPACK's workspace")


def covariance(s: Sizes) -> Cost:
    """ΦᵀΦ, its eigenvectors, LAPACK's workspace; U in blocks of rows, once for all λ and once for the chosen one, or kept where columns are taken out."""
    if s.r >= s.n:  # their Gram matrix takes its place
        found = gram(replace(s, r=s.n, d=s.r, given=True)).beside(2 * s.n * s.r, "coefficients of features")
        return found._replace(flops=found.flops + 2 * s.n**2 * s.r)
    flops = s.symmetric + 9 * s.r**3 + (2 if s.free else 4) * s.n * s.r**2 + s.sweep
    held = 5 * s.r**2 + 2 * s.wide + 4 * s.rows * s.columns + 4 * s.n * s.t + _made(s)
    return Cost(held, flops, "the features' covariance, its eigenvectors and blocks of rows at all λ")


def subset(s: Sizes) -> Cost:
    """B, which takes less than is said, or Φ in its place, which takes more where rows are not kept, the landmarks' own matrices, and blocks of rows of U."""
    held = s.n * s.r * (1 + s.ragged) + 2 * s.wide if s.kept else 4 * s.wide
    passes = 1 if s.kept else 3
    flops = passes * (s.kernel + 1.75 * s.n * s.r**2) + s.symmetric + 4 * s.n * s.r**2 + 17 * s.r**3 + s.sweep
    return Cost(
        held + 8 * s.r**2 + 4 * s.n * s.t, flops, f"{'n × m numbers of the rows' if s.kept else 'blocks of rows'} and landmarks' matrices"
    )


def keeps_rows(s: Sizes) -> bool:
    """Whether B is held: where what goes with it fits into half of memory, or blocks of it would take no less."""
    limit, held = memory_bytes(), subset(replace(s, kept=True)).numbers
    return limit is None or held * s.itemsize <= limit / 2 or held <= subset(replace(s, kept=False)).numbers


def cholesky_gram(s: Sizes) -> Cost:
    """K, K + λI which becomes its factor, the factor's inverse; with a gradient also the inverse of K + λI and the cotangent of K."""
    n2, cubes = s.n**2, s.lams * s.n**3
    if s.single and not s.gradient:
        return Cost((2 + s.weighted) * n2 + s.block, s.kernel + s.n**3, "K and its Cholesky factor")
    if s.b > 1:
        flops = s.kernel + (1.7 + 2 * s.weighted) * cubes
        return Cost((5.7 + 2 * s.weighted) * n2 + 2 * s.block, flops, "K, its inverse and groups of its rows")
    if s.gradient:
        return Cost((3.75 + s.weighted) * n2, 3 * s.kernel + 3 * s.n**3, "K, its Cholesky factor, inverse and cotangent")
    return Cost((3 + s.weighted) * n2 + 2 * s.block, s.kernel + cubes, "K, its Cholesky factor and inverse")


def refined(s: Sizes) -> Cost:
    """K, K + λI, its product with roots, the root of its inverse, that of a step, and two products: what five and a half products take, for every λ."""
    n2 = s.n**2
    return Cost((6.7 + 2.2 * (s.L > 1) + s.weighted) * n2, s.kernel + 11 * s.lams * s.n**3, "K, roots of its inverse and their products")


def cholesky_features(s: Sizes) -> Cost:
    """Moments, their Cholesky factor and its inverse for each λ, and blocks of rows; derivatives hold each two to three times."""
    held = _with_blocks(s, (2.5 + 2 * s.L) * s.r**2, 3) + s.n * s.d * s.ragged
    return Cost(held, (3.5 if s.gradient else 1) * _cholesky_flops(s), "the features' covariance, its factors and blocks of rows")


def cholesky_landmarks(s: Sizes) -> Cost:
    """The same on features made of rows of the kernel in every pass: a product more, and at each λ the landmarks' own matrices and rows."""
    held, passes = _with_blocks(s, (6.5 + 2 * s.L) * s.r**2, 1.75), 2 + (s.L > 1)
    flops = _cholesky_flops(s) + passes * s.kernel + 2 * s.n * s.r**2 + 5 * s.lams * s.r**3
    return Cost(held, (5 if s.gradient else 1) * flops, "landmarks' matrices and blocks of rows")


def _with_blocks(s: Sizes, square, times) -> int | float:
    """Squares, which derivatives hold so many `times`, and blocks of rows."""
    return (times if s.gradient else 1) * square + (4 if s.gradient else 2) * s.wide + 4 * s.n * s.t


def _cholesky_flops(s) -> int | float:
    """One pass for the moments, and one for each λ and for the chosen one."""
    return s.symmetric + s.lams * (s.r**3 + 2 * s.n * s.r**2)


def predict(s: Sizes, rows: int, value: int) -> Cost:
    """Blocks of rows of the kernel, or of features, of which each takes so many operations, and what comes out."""
    return Cost(min(2 * s.block, rows * s.r) + 2 * rows * s.t, rows * s.r * (value + 2 * s.t), "blocks of rows and predictions")


def groups(s: Sizes, route: str) -> Cost:
    """What leaving groups out of a factor adds, at all λ and then at the chosen one."""
    found = _groups_out(s, route)
    return found.then(_groups_out(replace(s, L=1), route)) if s.L > 1 else found


def _groups_out(s: Sizes, route: str) -> Cost:
    """U where it is not kept, pairs of rows of a group, and smaller decompositions where those are cheaper."""
    rest, count, kept = s.n - s.b, -(-s.n // s.b), route in ("gram", "features", "tridiagonal")
    together, leaving, cholesky = lams_together(s.b, s.t), route in ("subset", "cholesky landmarks"), route.startswith("cholesky")
    at_once = min(s.n * s.r, groups_together(s.b, s.r, s.t, together) * s.b * s.r) * min(s.L, together)
    # Products of the group's rows with each other, with planes of its landmarks, and of rows as those of weight 0 are known; and factors of those.
    products = 1 + cholesky + 2 * leaving + s.weighted * (1 + leaving)
    closed = Cost(
        (not kept) * s.n * s.r + (3 if kept else 8) * s.b**2 + at_once,
        s.L * s.n * s.b * (2 * s.r * products + s.b * (1 / 3 + 4 * leaving)),
        "pairs of rows of a group",
    )
    if route.startswith(("cholesky", "refined", "tridiagonal")) or not refitting_is_cheaper(s.b, rest, s.r, s.L):
        return closed
    if route == "gram":
        flops = 2 * s.n**3 + 9 * count * rest**3
        refits = Cost(2 * s.n**2 + 4 * rest**2 + rest * s.b, flops, "K, its eigenvectors, and those without a group")
    else:
        flops = count * (2 * rest * s.r**2 + 9 * s.r**3 + 4 * leaving * s.n * s.r**2)
        refits = Cost(3 * s.n * s.r + 5 * s.r**2, flops, "features of all rows, and those without a group")
    return closed.then(refits)._replace(flops=flops)  # in its place; of memory no more was measured than of the larger


# How many n × r numbers are held beside where columns without penalty are taken out, alone and with derivatives: more than blocks of rows, mostly;
# and in how many products with n × r numbers they are.
FREE: dict[str, tuple[float, float, int]] = {
    "gram": (0.5, 0, 6),
    "features": (0, 0, 4),
    "covariance": (3.7, 0, 6),
    "subset": (2, 0, 4),
    "cholesky gram": (-0.3, 0, 2),
    "cholesky features": (4.2, 8.5, 6),
    "cholesky landmarks": (4.2, 8.2, 10),
}


def beside_free_columns(s: Sizes, route: str, fit: Cost) -> Cost:
    """A fit with columns that have no penalty, which are taken out of every feature, or of K on both sides, and of the eigenvectors."""
    *shares, passes = FREE[route]
    share = shares[s.gradient]
    numbers = (max(share, 0) if s.single else share) * s.n * s.r
    return fit._replace(flops=fit.flops + 2 * passes * s.n * s.r * s.free).beside(numbers, "what the columns without penalty leave")


def beside_rows_left_out(s: Sizes, route: str, fit: Cost) -> Cost:
    """A fit with what it is asked for beside rows, or groups, left out: queries' own constants, pairs left out, and what is kept at the chosen λ."""
    dual = route in DUAL
    if s.rank and s.b > 1:
        fit = fit.beside(3 * s.n**2 if dual else 4 * s.n * s.r, "rows less the means of queries")
    rest = {"gram": 3 * s.n**2 + 2 * s.block, "features": 2.5 * s.n * s.r}.get(route, fit.numbers)
    if s.rank and s.b == 1:
        fit = fit.then(_pairs(s, route).beside(rest))
    return fit.then(_kept(s, route).beside(rest)) if s.variance or s.intervals else fit


def _pairs(s: Sizes, route: str) -> Cost:
    """U as both sides of the products that R is made of, and a block of rows of pairs with its temporaries, more where landmarks leave."""
    block = s.n * wide_block_size(max(1, s.n // PANELS), s.n * s.itemsize)
    flops = (PANELS + 1) / PANELS * s.L * s.n**2 * s.r
    return Cost(
        (4 if route == "cholesky gram" else 2) * s.n * s.r + (4.5 if "subset" in route else 2.3) * block,
        flops,
        "both sides of products and a block of pairs",
    )


# How many r³ the posterior covariance takes, and n·r·min(n, r) every fit that leaves a row out.
KEPT = {
    "gram": (0, 2),
    "features": (3, 2),
    "covariance": (3, 4),
    "subset": (0, 2),
    "cholesky gram": (1, 3),
    "cholesky features": (1.3, 4),
    "cholesky landmarks": (3, 5),
    "tridiagonal": (0, 9),
    "refined": (0, 15),
}


def _kept(s: Sizes, route: str) -> Cost:
    """The posterior covariance, and the smoother of every row with the products that it is made of, or its sums over groups."""
    dual, few, numbers, flops, words = route in DUAL, min(s.n, s.r), 0.0, 0.0, []
    decomposed = "gram" if few == s.n and not dual else route  # of few rows their Gram matrix
    cubes, products = KEPT.get(decomposed, (0, 0))
    if s.variance:
        numbers, flops, words = (1.5 * s.n**2 if dual else 3 * s.r * few), cubes * s.r**3 + s.r * few, ["the posterior covariance"]
    if s.intervals:
        numbers += (2 if route == "tridiagonal" else 1) * s.n**2 if dual else (1.5 if s.b > 1 else 3) * s.n * s.r
        flops, words = flops + products * s.n * s.r * few, [*words, "every fit that leaves a row out"]
    return Cost(numbers, flops, " and ".join(words))


def refitting_is_cheaper(b: int, a: int, r: int, L: int) -> bool:
    """An eigendecomposition for each group than the closed form, for groups of b rows with a others, r directions and L values of λ."""
    closed = L * (2 * b * b * r + b**3)
    return 2 * a * r * min(a, r) + 12 * min(a, r) ** 3 < closed


def weighing_is_cheaper(n: int, b: int, r: int, columns: tuple[int, int], cubes: int) -> bool:
    """Sums over n rows anew for each group than the closed form, for groups of b rows: `columns` are values of λ, and fits, and a refit takes so many r³."""
    L, fits = columns
    return 2 * n * r * (r + fits) + cubes * r**3 < L * (2 * b * b * r + b**3)


def choosing(s: Sizes) -> Cost:
    """The partial Cholesky factor of the choice of landmarks, and what it grows into."""
    return Cost(s.n * (s.r + min(s.r / 4, 128)) + 2 * s.wide, s.kernel + 2 * s.n * s.r**2, "the partial Cholesky factor of K")


def _made(s: Sizes) -> int:
    """Features where they are made, or whole blocks cut out of them."""
    return s.n * s.r * (2 if not s.given else s.ragged)


def iterative(s: Sizes) -> Cost:
    """The landmarks' fit, and sixteen vectors of every column while all λ, targets and probes go on together, for as many steps as they mostly take."""
    columns, one = s.L * (s.t + s.probes), s.t + s.probes
    step = lambda columns: s.n**2 * (s.value + 2 * columns) + 4 * s.n * s.r * columns  # noqa: E731
    flops = STEPS * (step(columns) + (s.L > 1) * step(one))
    run = Cost(s.n * s.r + 16 * s.n * columns + 2 * s.block, flops, "vectors for λ × (targets + probes), and landmarks' rows")
    return subset(replace(s, L=1)).then(run)


def tridiagonal(s: Sizes) -> Cost:
    """K, its reflectors as LAPACK packs them and as rows, Q, and rows of it side by side with λ; K once more where there are weights."""
    n2, flops = s.n**2, s.kernel + 8 * s.n**3 / 3 + 5 * s.n**2 * (s.L + 1) * (1 + s.t) + 2 * s.n**3 * s.weighted * (s.b > 1)
    return Cost((4 + s.weighted) * n2 + 2 * s.n * s.columns + 2 * s.block, flops, "K, its reflectors and what they multiply to")


def kronecker(s: Sizes) -> Cost:
    """Two-sided data, n pairs of n/r rows and r columns: the larger side's spectrum, and labels at the λ that are handled together."""
    first, larger = s.n // s.r, max(s.n // s.r, s.r)
    spectra = Cost(4 * larger**2, 9 * (first**3 + s.r**3), "the larger side's K, eigenvectors and LAPACK's workspace")
    sweep = 3 * (s.L + 1) * s.n * (first + s.r) * (1 + s.t)
    at_once = min(s.L * s.n * s.t, max(ENTRIES_AT_ONCE, s.n * s.t))
    return spectra.then(Cost(2 * larger**2 + 8 * at_once, sweep, "labels of all pairs at several λ")).beside(4 * s.n)


DUAL = ("gram", "cholesky gram", "refined", "tridiagonal")
ROUTES: dict[str, Callable[[Sizes], Cost]] = {
    "gram": gram,
    "features": features,
    "covariance": covariance,
    "subset": subset,
    "cholesky gram": cholesky_gram,
    "refined": refined,
    "cholesky features": cholesky_features,
    "cholesky landmarks": cholesky_landmarks,
    "iterative": iterative,
    "tridiagonal": tridiagonal,
}
