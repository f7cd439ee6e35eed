"""Packages for microcontrollers: a static library or C sources, checked before they are published.

`ibert_tvm.targets.bare_metal.package.write_package` writes one; what is named here needs no TVM.
"""

from .document import PACKAGE, is_package, read_package
from .options import FORMS, PackageOptions
