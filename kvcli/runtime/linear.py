"""Matrix products of the built-in transformer.

On CPUs torch gives a product with one row, which is all of a decode step, to a BLAS that may use one core for it; oneDNN,
which torch carries as well, uses all of them and reads the matrix at the machine's rate. `benchmarks/cpu_linear.py`
measures both.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor


def _find_onednn() -> Callable[..., Tensor] | None:
    """oneDNN's operator, if this build of torch has it and it computes what F.linear computes."""
    try:
        operator: Callable[..., Tensor] = torch.ops.mkldnn._linear_pointwise
        row, matrix, bias = torch.ones(1, 1, 8), torch.arange(32.0).view(4, 8), torch.arange(4.0)
        if torch.equal(operator(row, matrix, bias, "none", [], ""), F.linear(row, matrix, bias)):
            return operator
    except (AttributeError, RuntimeError, TypeError):
        # an operator without a stable interface: where it is absent or differs, F.linear serves
        pass
    return None


_onednn = _find_onednn()


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [..., in] times weight [out, in] transposed, plus bias [out]."""
    if _onednn is not None and x.dtype is torch.float32 and x.device.type == "cpu":
        return _onednn(x, weight, bias, "none", [], "")
    return F.linear(x, weight, bias)
