"""Whether ranks that are to hold the same state do: parameters, optimizers' state and steps, position in the data.

Now and then a checksum of it goes with a vote. In a world's first step, before a checkpoint, before a switch and at the
end all ranks compare theirs, so that every checkpoint is one of a state in which they agreed. A difference ends the
world: the training goes on from the last checkpoint, and a second difference ends the job. Parts of models that are cut
up are compared with the other replicas of the same part.
Limits: ranks of different kinds of devices, whose arithmetic differs in the last bit, are compared in positions and
counts alone. Buffers (running statistics follow each rank's own samples), what job.keep() was given besides optimizers,
and tensors that are no plain memory are not compared. What rank 0 writes alone where a job is killed is not.
"""

import dataclasses
import hashlib
import itertools
import platform
import time
import zlib
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._pytree import tree_leaves

from slurm_elastic.protocol.errors import TrainingError

from ...parallel.deterministic import Deterministic
from ...parallel.strategy import Strategy, is_part
from ...state.kept_parts import State
from ...world import objects
from ...world import process_group as worlds
from ...world.agreement import WORD_BITS, Tally, Vote
from ...world.process_group import World
from .first_calls import BUFFERS, kept_buffers

TELLING = 8
"""Distinct values that inputs have to have: fewer may be equal by chance, or a constant."""
SAMPLED = 4096
"""Elements at either end of an input that are looked at."""
NUMBERS = (
    "the script trains by '{0}', which is {1} on rank 0 and {2} on rank {3}: each makes it of its own samples; "
    "accepted: what all ranks make it of together (torch.distributed.all_reduce), or join(meant=['{0}'])"
)
LEFT_ALONE = (
    "rank {0} has left a pass over job.loader() at {1}, and rank {2} went on: what ends a pass has to be the same on "
    "each; accepted: job.global_step, or what they have made together (torch.distributed.all_reduce)"
)
FIRST = (4, 16, 64)
"""Steps of a world whose votes carry a checksum, ..."""
EVERY = 100
"""... then each so many steps, ..."""
EVERY_S = 60.0
"""... and no less often than this."""
POSITION = ("step", "samples", "epoch", "loader", "cursor", "pass_samples", "schedule")
SUMMED = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def kind_of(device: torch.device) -> int:
    """What ranks have in common that compute the same from the same, to the last bit."""
    words = [torch.__version__, platform.machine()]
    if device.type == "cuda":
        words.append(torch.cuda.get_device_name(device))
    else:  # where a vector ends and single numbers follow depends on how work is cut up over threads
        words += [torch.backends.cpu.get_cpu_capability(), str(torch.get_num_threads())]
    return zlib.crc32(" ".join(words).encode())


@dataclasses.dataclass(eq=False)
class Held:
    """What one rank holds after a step: plain values by name, and of each tensor the sum of its bits."""

    step: int
    values: dict[str, Any]
    names: list[str]
    cuts: list[Any]
    """Of each tensor that is a part: which one."""
    sums: torch.Tensor
    ready: Any = None
    """An event, of sums that come from a GPU."""

    def read(self) -> list[int]:
        if self.ready is not None:
            self.ready.synchronize()
        found: list[int] = self.sums.tolist()
        return found

    def digests(self, bits: int) -> tuple[int, int]:
        """Of the values, and of the tensors."""
        return _digest(sorted(self.values.items()), bits), _digest((self.names, self.read()), bits)


class ReplicaCheck:
    """See the module. One per session."""

    def __init__(self, state: State, model: Callable[[], Strategy], device: torch.device) -> None:
        self._state, self._model, self._device = state, model, device
        self._steps: dict[int, int] = {}
        """Of each optimizer in this world, by its id."""
        self._handle: Any = None
        self._kind = kind_of(device)
        self._votes = 0
        self._begins = self._one_kind = self._wanted = False
        self._looked_at = time.monotonic()
        self.meant = set[str]()
        """Names of which the script says that what they do is meant."""
        self.left = ""
        """Where the script has left a pass early, which nobody has compared yet."""
        self.numbers: dict[str, str] = {}
        """By which the script trains, and that have changed."""
        self.same_inputs = False
        """Whether ranks compute on the same inputs on purpose."""
        self._has_part = False
        """Whether what this rank computes in the first step counts, and is not for company."""
        self._notes = False
        self._inputs: list[int] = []
        """Of the calls of models in the first step."""
        self._copied: Held | None = None
        self._said: Held | None = None
        """What the vote under way has the checksum of."""

    def entered(self, world: World, kinds: set[int]) -> None:
        """A world begins, of ranks of these kinds."""
        if self._handle is None and world.size > 1:
            self._handle = register_optimizer_step_post_hook(self._stepped)
        self._steps.clear()
        self._votes, self._begins, self._wanted = 0, world.size > 1, False
        self._one_kind = len(kinds) == 1
        self._notes, self._has_part = world.size > 1 and not self.same_inputs, False
        self._inputs, self.left = [], ""
        self._copied = self._said = None

    def close(self) -> None:
        if self._handle is not None:
            self._handle.remove()

    def _stepped(self, optimizer: Any, *_: object) -> None:
        self._steps[id(optimizer)] = self._steps.get(id(optimizer), 0) + 1

    # -- inputs ----------------------------------------------------------------------------------------------------

    def note_inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A model is called."""
        if not self._notes or not torch.is_grad_enabled():
            return
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if type(leaf) is torch.Tensor and not leaf.is_meta]
        parts = [_sample(leaf) for leaf in tensors if leaf.layout == torch.strided]
        if any(len(torch.unique(part)) >= TELLING for part in parts):
            self._inputs.append(_digest([part.tolist() for part in parts], 62))

    def takes_part(self, own: bool) -> None:
        """A step of this rank, with samples of its `own`. A GPU's first vote is heard a step later only."""
        self._has_part = self._has_part or (own and self._notes)

    def _check_inputs(self, world: World) -> None:
        """Raise TrainingError, on every rank, where two of them compute on the same."""
        if self.same_inputs:
            return
        counts = world.speaks and self._has_part
        everyone = objects.gather(self._inputs[:64] if counts else [], world.group)
        for rank, other in itertools.combinations(range(world.size), 2):
            pairs = list(zip(everyone[rank], everyone[other], strict=False))
            if pairs and all(one == two for one, two in pairs):
                raise TrainingError(
                    f"ranks {rank} and {other} gave the model the same inputs in the first step of this world, so that "
                    "both train on the same samples; accepted: job.loader(dataset), a source that each rank reads at "
                    "its own positions of job.share(n) (docs/how-to/data-that-is-no-dataset.md), or "
                    "join(same_inputs=True) where that is meant"
                )

    def _check_numbers(self, world: World) -> None:
        """Raise TrainingError, on every rank, where ranks train by numbers of their own."""
        everyone = objects.gather(self.numbers, world.group)
        for name, rank in itertools.product(everyone[0], range(1, world.size)):
            if everyone[rank].get(name, everyone[0][name]) != everyone[0][name]:
                raise TrainingError(NUMBERS.format(name, everyone[0][name], everyone[rank][name], rank))

    def _check_buffers(self, world: World) -> None:
        """Raise TrainingError, on every rank, where the model's buffers differ behind a world's first step."""
        if not self._alike or world.unit > 1:
            return
        buffers = [(name, buffer) for name, buffer in kept_buffers(self._model().module) if not is_part(buffer)]
        sums = {name: int(found) for name, buffer in buffers if (found := _sum_of_bits(buffer)) is not None}
        everyone = objects.gather(sums, world.group)
        for name in sums:
            if len({told.get(name) for told in everyone}) > 1 and self.meant.isdisjoint(
                (name, name.rpartition(".")[2])
            ):
                raise TrainingError(BUFFERS.format(name))

    # -- beside the steps ------------------------------------------------------------------------------------------

    def add_to(self, vote: Vote, rank: int) -> Vote:
        """The vote, with a checksum where one is due. In a world of several ranks."""
        self._votes += 1
        copied, self._copied, self._said = self._copied, None, None
        if self._wanted or self._votes in FIRST or self._votes % EVERY == 0:
            self._wanted, self._looked_at = False, time.monotonic()
            held = self.look()
            if held.ready is None:
                copied = held
            else:
                self._copied = held  # said with the next vote, when the GPU has it
        if copied is not None:
            self._said = copied
            plain, tensors = copied.digests(WORD_BITS)
            return dataclasses.replace(vote, word=plain ^ tensors if self._alike else plain)
        if self.left or (rank == 0 and time.monotonic() - self._looked_at > EVERY_S):
            return dataclasses.replace(vote, look=True)
        return vote

    def taken(self) -> Held | None:
        """What the vote that has just been sent has the checksum of."""
        said, self._said = self._said, None
        self._notes = False
        return said

    def heard(self, sums: Tally, said: Held | None, world: World) -> str:
        """How ranks differ, by the tally of a vote; "" where they do not. Every rank calls this."""
        self._wanted = self._wanted or sums.look
        if self._begins:
            self._begins = False
            self._check_inputs(world)
            self._check_numbers(world)
            self._check_buffers(world)
            return self.compare(world)
        if said is None or (sums.alike and self._alike):
            self.left = self.left if said is None else ""
            return ""
        return self._difference(world, said) if not sums.alike else self.compare(world, said)

    @property
    def _alike(self) -> bool:
        """Whether all ranks are to hold the same tensors."""
        return self._one_kind and not self._model().sharded

    # -- together --------------------------------------------------------------------------------------------------

    def compare(self, world: World, held: Held | None = None) -> str:
        """As heard(), of what there is now, or of what was `held` at one step."""
        if world.size == 1:
            return ""
        held = held or self.look()
        answers = worlds.gather(world, *held.digests(62), _digest(self._key(world, held), 62))
        plain = {answer[0] for answer in answers}
        tensors = {(key, tensors) for _, tensors, key in answers}
        same = len(plain) == 1 and len(tensors) == len({key for key, _ in tensors})
        return "" if same else self._difference(world, held)

    def _key(self, world: World, held: Held) -> tuple[Any, ...]:
        """Ranks that have it in common hold the same tensors."""
        return self._kind, world.rank % world.unit, held.cuts

    def _difference(self, world: World, held: Held) -> str:
        everyone = objects.gather(
            (self._key(world, held), held.values, dict(zip(held.names, held.read(), strict=True))), world.group
        )
        left = {rank: str(values.get("left", "")) for rank, (_, values, _) in enumerate(everyone)}
        for rank, other in itertools.permutations(left, 2):
            if left[rank] and not left[other]:
                raise TrainingError(LEFT_ALONE.format(rank, left[rank], other))
        found: list[tuple[int, int, str]] = []
        for name in dict.fromkeys(name for _, values, _ in everyone for name in values):
            found += _odd({rank: (entry[1].get(name),) for rank, entry in enumerate(everyone)}, name)
        if found and "'s group " in found[0][2]:  # no fault of a node: who starts again sets it as it did before
            rank, other, name = found[0]
            raise TrainingError(
                f"rank {rank} holds another {name} than rank {other} after step {held.step}; accepted: one that is set "
                "by job.global_step, or by what job.keep() was given, alike on a worker that joins or starts again"
            )
        for key in dict.fromkeys(repr(key) for key, *_ in everyone):
            same = {rank: entry[2] for rank, entry in enumerate(everyone) if repr(entry[0]) == key}
            for name in dict.fromkeys(name for sums in same.values() for name in sums):
                found += _odd({rank: (sums.get(name),) for rank, sums in same.items()}, name)
        if not found:
            return f"the ranks hold different states after step {held.step}"
        rank, other, name = found[0]
        more = f" (and differs in {len(found) - 1} more)" if len(found) > 1 else ""
        return (
            f"rank {rank} holds another {name} than rank {other} after step {held.step}{more}: the ranks no longer "
            "train the same, by something that the script does on one of them alone, or by a fault of its node"
        )

    # -- of this rank ----------------------------------------------------------------------------------------------

    def look(self) -> Held:
        """What this rank holds now."""
        progress = self._state.progress
        values: dict[str, Any] = {f"position ({name})": getattr(progress, name) for name in POSITION}
        values |= {"left": self.left} if self.left else {}
        tensors: dict[str, torch.Tensor] = {}
        for name, value in self._named():
            if isinstance(value, torch.Tensor):
                tensors[name] = value
            else:
                values[name] = value
        cuts = [_cuts(name, tensor) for name, tensor in tensors.items() if is_part(tensor)]
        sums = {name: found for name, tensor in tensors.items() if (found := _sum_of_bits(tensor)) is not None}
        return _held(progress.step, values, sums, cuts)

    def _named(self) -> Iterator[tuple[str, Any]]:
        module = self._model().module
        names = {id(parameter): name for name, parameter in module.named_parameters()}
        yield from ((f"value of {name}", parameter) for name, parameter in module.named_parameters())
        if isinstance(self._model(), Deterministic):  # there no forward pass changes them
            yield from ((f"value of {name}", buffer) for name, buffer in module.named_buffers())
        for part, optimizer in self._state.parts.items():
            if not self._state.is_own(part) or not isinstance(optimizer, torch.optim.Optimizer):
                continue
            yield f"number of steps of {part}", self._steps.get(id(optimizer), 0)
            for number, group in enumerate(optimizer.param_groups):
                for option, value in group.items():
                    if option != "params" and _is_plain(value):
                        yield f"{option} of {part}'s group {number}", value
                for place, parameter in enumerate(group["params"]):
                    whose = names.get(id(parameter), f"parameter {place} of group {number}")
                    for entry, value in sorted(_state_of(optimizer, parameter).items(), key=lambda item: str(item[0])):
                        if _is_plain(value):
                            yield f"{entry} of {part} for {whose}", value


def _state_of(optimizer: torch.optim.Optimizer, parameter: Any) -> Mapping[Any, Any]:
    state: Mapping[Any, Any] = optimizer.state.get(parameter, {})
    return state


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(_is_plain(entry) for entry in value) and not any(isinstance(e, torch.Tensor) for e in value)
    return value is None or isinstance(value, (bool, int, float, str, torch.Tensor))


def _cuts(name: str, tensor: torch.Tensor) -> Any:
    from ...world.mesh import cuts_of  # there by now; it costs an import elsewhere

    return name, [dataclasses.astuple(cut) for cut in cuts_of(tensor)]


def _sum_of_bits(tensor: torch.Tensor) -> torch.Tensor | None:
    """Another one for one bit that is another, whatever the order in memory; None for what is no plain memory."""
    tensor = getattr(tensor, "_local_tensor", tensor).detach()
    if tensor.layout != torch.strided or tensor.is_meta or tensor.is_quantized:
        return None
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    wide = tensor.element_size() == 8
    return tensor.view(SUMMED[tensor.element_size()]).sum(dtype=torch.int64 if wide else torch.int32)


def _sample(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.detach().flatten()
    return torch.cat([flat[:SAMPLED], flat[-SAMPLED:]]).cpu()


def _held(step: int, values: dict[str, Any], sums: dict[str, torch.Tensor], cuts: list[Any]) -> Held:
    names, found = list(sums), list(sums.values())
    on_gpu = [place for place, entry in enumerate(found) if entry.is_cuda]
    if not on_gpu:
        return Held(step, values, names, cuts, _stacked(found))
    order = on_gpu + [place for place, entry in enumerate(found) if not entry.is_cuda]
    stacked = torch.empty(len(found), dtype=torch.int64, pin_memory=True)
    stacked[: len(on_gpu)].copy_(_stacked([found[place] for place in on_gpu]), non_blocking=True)
    stacked[len(on_gpu) :] = _stacked([found[place] for place in order[len(on_gpu) :]])
    ready = torch.cuda.Event()
    ready.record()
    return Held(step, values, [names[place] for place in order], cuts, stacked, ready)


def _stacked(found: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(found).to(torch.int64) if found else torch.zeros(0, dtype=torch.int64)


def _digest(value: Any, bits: int) -> int:
    found = hashlib.blake2b(repr(value).encode(), digest_size=8).digest()
    return int.from_bytes(found, "little") & ((1 << bits) - 1)


def _odd(held: Mapping[int, Hashable], name: str) -> list[tuple[int, int, str]]:
    """The first rank that differs from most, or from the first one, and one that it differs from."""
    ranks: dict[Hashable, list[int]] = {}
    for rank, value in held.items():
        ranks.setdefault(repr(value), []).append(rank)
    if len(ranks) == 1:
        return []
    most = max(ranks.values(), key=len)
    return [(min(rank for rank in held if rank not in most), most[0], name)]
