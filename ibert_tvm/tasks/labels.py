"""Labels of a file as classes of a model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from .errors import DataError

_SHOWN = 8


def class_numbers(
    labels: Iterable[str],
    names: Sequence[str],
    order: Sequence[str] = (),
    given: Mapping[str, str] | None = None,
) -> dict[str, int]:
    """Find the class of every label.

    What the user says comes first, then the model's name for a class (in any case), then the order
    of the format where the model has no names of its own (``LABEL_0`` ...), then its number.

    Parameters
    ----------
    labels
        As the file has them.
    names
        The model's, in the order of its classes.
    order
        Labels in the order of the classes that the format's own models have; empty if it says none.
    given
        Names or numbers of classes by label.

    Raises
    ------
    DataError
        If the model has no class for a label.
    """
    by_name = {_key(name): place for place, name in enumerate(names)}
    nameless = all(name == f"LABEL_{place}" for place, name in enumerate(names))
    by_order = {_key(label): place for place, label in enumerate(order)} if nameless else {}
    if len(by_order) > len(names):
        by_order = {}
    numbers = {str(place): place for place in range(len(names))}
    found: dict[str, int] = {}
    unknown = []
    for label in dict.fromkeys(labels):
        word = _key((given or {}).get(label, label))
        place = next((table[word] for table in (by_name, by_order, numbers) if word in table), None)
        if place is None:
            unknown.append(label)
        else:
            found[label] = place
    if unknown:
        raise unknown_labels(unknown, names)
    return found


def unknown_labels(labels: Sequence[str], names: Sequence[str]) -> DataError:
    """Return the error of labels that a model, whose classes are `names`, does not have."""
    return DataError(
        f"the model has no class for {_listed(labels)}",
        why=f"its classes are {_listed(names)}",
        todo="say which class each label is: --labels LABEL=CLASS,... with the name or the "
        "number of the class, or give the model that was trained on this task",
    )


def _key(label: str) -> str:
    return label.strip().casefold().replace("-", "_").replace(" ", "_")


def _listed(words: Sequence[str]) -> str:
    shown = ", ".join(repr(word[:40]) for word in words[:_SHOWN])
    return shown + (f" and {len(words) - _SHOWN} more" if len(words) > _SHOWN else "")
