"""The targets and machines that are known: those of this package, and what a program registers."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from ibert_tvm.common.errors import TargetError

from .cuda.descriptions import GPUS, is_gpu_name
from .description import TargetDescription
from .machines import MACHINES
from .machines.record import Machine
from .processors import PROCESSORS

if TYPE_CHECKING:
    from elftools.elf.elffile import ELFFile

BUILT_IN = (*PROCESSORS, *GPUS)


class Catalogue:
    """Targets by name, and their machines.

    Parameters
    ----------
    targets
        Known from the start; they can be neither replaced nor removed.
    """

    def __init__(self, targets: tuple[TargetDescription, ...]) -> None:
        self._built_in = {target.name: target for target in targets}
        self._registered: dict[str, TargetDescription] = {}
        self._lock = threading.Lock()

    def targets(self) -> dict[str, TargetDescription]:
        """All targets by name."""
        return {**self._built_in, **self._registered}

    def find(self, name: str) -> TargetDescription | None:
        """The target of a name, its own or that of a processor that runs its code."""
        targets = self.targets()
        return targets.get(name) or next((t for t in targets.values() if name in t.also), None)

    def machines(self) -> tuple[Machine, ...]:
        """All machines: built in, and those of registered targets."""
        registered = {target.machine.name: target.machine for target in self._registered.values()}
        return tuple({**registered, **MACHINES}.values())

    def register_target(self, description: TargetDescription) -> None:
        """Make a target known in this process: to `get_target`, and to the command line.

        Raises
        ------
        TargetError
            If there is a target of that name, its name cannot be one, or another machine has the
            name of its machine.
        """

        def refused(why: str, todo: str) -> TargetError:
            where = f"target {description.name!r}"
            return TargetError("the target cannot be registered", where, why, todo)

        name, machine = description.name, description.machine
        if not name or name == "host" or name != name.strip() or is_gpu_name(name):
            raise refused("its name is empty or reserved", "choose another name")
        with self._lock:
            if any(self.find(one) for one in (name, *description.also)):
                raise refused("there is a target of that name", "choose another name")
            if any(machine.name == one.name and machine != one for one in self.machines()):
                why = f"there is another machine {machine.name!r}"
                raise refused(why, "use that machine, or choose another name for this one")
            self._registered[name] = description

    def unregister_target(self, name: str) -> None:
        """Forget a target that `register_target` made known.

        Raises
        ------
        TargetError
            If there is none of that name.
        """
        with self._lock:
            if self._registered.pop(name, None) is None:
                raise TargetError(
                    "the target cannot be removed",
                    where=f"target {name!r}",
                    why="no registered target has that name",
                    todo="only targets of register_target can be removed",
                )

    def running_on(self, name: str) -> Machine | None:
        """The machine whose programs run where ``uname -m`` says `name`; None if none is known."""
        return next((machine for machine in self.machines() if machine.runs_on(name)), None)

    def of_file(self, elf: ELFFile) -> list[Machine]:
        """The machines that an ELF file may be for."""
        kind = elf["e_machine"], elf.elfclass
        return [
            machine for machine in self.machines() if (machine.elf_machine, machine.bits) == kind
        ]


CATALOGUE = Catalogue(BUILT_IN)
"""What this process knows."""
