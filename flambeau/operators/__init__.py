"""The op declarations, by family. Importing this package registers all of them."""

from flambeau.operators import activation, arithmetic, comparison, complexes, conversion, creation, elementary, reduction, view  # noqa: F401
from flambeau.operators import matmul, matmul_added  # noqa: F401
from flambeau.operators import dropout, random  # noqa: F401
from flambeau.operators import einsum  # noqa: F401
from flambeau.operators import logic, powers, rounding, selection  # noqa: F401
from flambeau.operators import assemble, indexed, images, joins, places, scatter, strided  # noqa: F401
from flambeau.operators import scan  # noqa: F401
from flambeau.operators import convolution, windows  # noqa: F401
from flambeau.operators import sorting  # noqa: F401
from flambeau.operators import adaptive_pooling, pool_forms, pooling  # noqa: F401
from flambeau.operators import losses, losses_class, losses_distance  # noqa: F401
from flambeau.operators import norms, statistics  # noqa: F401
from flambeau.operators import losses_sequence  # noqa: F401
from flambeau.operators import nonlinear, polynomials, special  # noqa: F401
from flambeau.operators import rotary  # noqa: F401
from flambeau.operators import attention, bags  # noqa: F401
from flambeau.operators import normalisation  # noqa: F401
from flambeau.operators import interpolation  # noqa: F401
from flambeau.operators import sampling  # noqa: F401
from flambeau.operators import binning  # noqa: F401
from flambeau.operators import recurrent  # noqa: F401
from flambeau.operators import linear_algebra  # noqa: F401
from flambeau.operators import masked  # noqa: F401
from flambeau.operators import linear_algebra_lu  # noqa: F401
from flambeau.operators import linear_algebra_spectral  # noqa: F401
from flambeau.operators import linear_algebra_least  # noqa: F401
from flambeau.operators import fourier  # noqa: F401
from flambeau.operators import random_counts  # noqa: F401
