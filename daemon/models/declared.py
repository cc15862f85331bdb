"""What is believed of the speed of a job without a batch (`selastic hold`) at sizes where nothing was measured: the
curve in its request, through what was measured last. Rows as if they had been reported, each worth one report.

Limit: where neither a curve nor a measurement is known every GPU counts alike, and the job gets what would be idle.
"""

import math
from collections.abc import Sequence

from slurm_elastic.db.rows import ObservationRow
from slurm_elastic.protocol.messages import Piece
from slurm_elastic.protocol.request import ElasticRequest

Rows = tuple[ObservationRow, ...]


def with_declared(request: ElasticRequest, seen: Rows, pieces: Sequence[Piece]) -> Rows:
    """What was seen, and what is declared of other sizes; of a job with a batch what was seen. pieces: in use."""
    if request.max_batch or (seen and not request.speedup):
        return seen
    exponent = math.log2(2.0 * (request.speedup or 1.0))
    last = max(seen, key=lambda row: row.last_at, default=None)
    each = last.step_time / last.gpus ** (1.0 - exponent) if last is not None else 1.0
    per_node = max((piece.gpus_per_node for piece in pieces), default=1)
    sizes = {1, request.min_gpus, request.max_gpus}
    sizes |= {1 << power for power in range(request.max_gpus.bit_length())}
    known = {row.gpus for row in seen}
    # A step is one unit for each GPU: on k of them k ** exponent / each units a second.
    declared = {k: each * k ** (1.0 - exponent) for k in sorted(sizes - known)}
    return seen + tuple(
        ObservationRow(k, -(-k // per_node), k, 1, 1, 1, step_s, k / step_s, 0.0, 0.0) for k, step_s in declared.items()
    )


def only_idle(request: ElasticRequest, rows: Sequence[ObservationRow]) -> bool:
    """Whether nobody knows how good a size is: it gets what would be idle."""
    return not request.max_batch and not request.speedup and all(row.last_at == 0.0 for row in rows)
