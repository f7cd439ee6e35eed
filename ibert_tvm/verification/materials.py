"""The bill of materials of an artefact, in CycloneDX 1.6: what it is made of, and made by.

https://cyclonedx.org/docs/1.6/json/. The same artefact gives the same document, so that it has no
time stamp, and a serial number that follows from the artefact's digest.
"""

from __future__ import annotations

import re
import uuid
from pathlib import Path

from ..common.files import files_sha256
from ..common.integrity import MANIFEST, check_manifest
from ..common.strict_json import JsonDict, JsonObject
from ..common.version import __version__
from ..model.artefact import damaged

_ARTEFACT, _SOURCE = "artefact", "source"
_PACKAGES = {
    "ibert_tvm": ("ibert-tvm", "Apache-2.0"),
    "tvm": ("apache-tvm", "Apache-2.0"),
    "numpy": ("numpy", "BSD-3-Clause"),
}
"""By the name under which artefacts have its version: name in the package index, and licence."""
_KNOWN_LICENCES = {
    name.lower(): name
    for name in (
        *("Apache-2.0", "BSD-3-Clause", "MIT", "CC0-1.0", "CC-BY-4.0", "CC-BY-SA-4.0"),
        *("CC-BY-NC-4.0", "CC-BY-NC-SA-4.0", "GPL-3.0", "AGPL-3.0", "LGPL-3.0"),
    )
}
"""SPDX identifiers of licences, as models state them."""


def bill_of_materials(path: Path, document: JsonObject) -> JsonDict:
    """Make the bill of an artefact.

    Parameters
    ----------
    path : pathlib.Path
        A ``NAME.ibert`` folder, a library or a package.
    document
        What `ibert inspect` says of it.

    Returns
    -------
    dict
        JSON-able. Files of a folder have their SHA-256 each.
    """
    info, versions = document["info"], document.get("versions", {})
    digest = files_sha256([path if path.is_file() else path / MANIFEST])
    packages = [
        _package(name, version, runs=name == "tvm" and document.get("runtime") == "tvm")
        for name, version in sorted(versions.items())
        if name in _PACKAGES
    ]
    source = {
        "type": "machine-learning-model",
        "bom-ref": _SOURCE,
        "name": Path(info.get("source", "")).name or info["architecture"],
        "description": "the float model; its hash is that of its weight files, in name order",
        **_hashes(info.get("source_sha256", "")),
        **_licences(info.get("license")),
    }
    artefact = {
        "type": "machine-learning-model",
        "bom-ref": _ARTEFACT,
        "name": path.resolve().name,
        "description": info.get("description", ""),
        **(_hashes(digest) if path.is_file() else {"components": _files(path)}),
        **_licences(info.get("license")),
        "pedigree": {"ancestors": [source]},
        "modelCard": {
            "modelParameters": {
                "task": info["head"],
                "architectureFamily": "transformer",
                "modelArchitecture": info["architecture"],
                "inputs": [{"format": name} for name in info["inputs"]],
                "outputs": [{"format": output["name"]} for output in info["outputs"]],
            }
        },
        "properties": [
            {"name": f"ibert_tvm:{name}", "value": str(value)}
            for name, value in (
                ("digest", document.get("digest", digest)),
                ("preset", document.get("preset")),
                ("runtime", document.get("runtime")),
                ("target", document.get("target", {}).get("name")),
                ("compiler", document.get("toolchain", {}).get("compiler")),
            )
            if value
        ],
    }
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'urn:sha256:{digest}')}",
        "version": 1,
        "metadata": {
            "tools": {
                "components": [{"type": "application", "name": "ibert-tvm", "version": __version__}]
            },
            "component": artefact,
        },
        "components": packages,
        "dependencies": [
            {"ref": _ARTEFACT, "dependsOn": [package["bom-ref"] for package in packages]}
        ],
    }


def _package(name: str, version: str, runs: bool) -> JsonDict:
    """A package that made an artefact; or that runs it, too."""
    indexed, licence = _PACKAGES[name]
    place = f"pkg:pypi/{indexed}@{version}"
    return {
        "type": "library",
        "bom-ref": place,
        "name": indexed,
        "version": version,
        "purl": place,
        "scope": "required" if runs else "excluded",
        **_licences(licence),
    }


def _files(folder: Path) -> list[JsonDict]:
    names = [MANIFEST, *check_manifest(folder, damaged)]
    return [
        {"type": "file", "name": name, **_hashes(files_sha256([folder / name]))}
        for name in sorted(names)
    ]


def _hashes(sha256: str) -> JsonDict:
    known = re.fullmatch("[0-9a-f]{64}", sha256)
    return {"hashes": [{"alg": "SHA-256", "content": sha256}]} if known else {}


def _licences(stated: str | None) -> JsonDict:
    if stated is None:
        return {}
    known = _KNOWN_LICENCES.get(stated.lower())
    licence = {"name": stated} if known is None else {"id": known}
    return {"licenses": [{"license": {**licence, "acknowledgement": "declared"}}]}
