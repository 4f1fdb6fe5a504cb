"""Wheels with compiled libraries, where ``DRAFTWOOD_PREBUILT`` is set; see ``make wheel``.

Otherwise the package is plain Python, which compiles its C++ on the machine that it runs on.
"""

import os
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

sys.path.insert(0, str(Path(__file__).parent / "src"))

from draftwood.native import prebuilt

PREBUILT = bool(os.environ.get("DRAFTWOOD_PREBUILT"))


class Build(build_py):
    """Adds the libraries to the package."""

    def run(self) -> None:
        super().run()
        if PREBUILT:
            prebuilt.build(folder_of(self))


class Wheel(bdist_wheel):
    """For one platform and any Python 3, as the libraries know nothing of Python."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.root_is_pure = not PREBUILT

    def get_tag(self) -> tuple[str, str, str]:
        if not PREBUILT:
            return super().get_tag()
        built = folder_of(self.get_finalized_command("build_py"))
        return "py3", "none", prebuilt.platform_tag(sorted(built.glob("*.so")))


class Package(Distribution):
    def has_ext_modules(self) -> bool:
        return PREBUILT


def folder_of(command: build_py) -> Path:
    """Folder of the libraries before they are packed."""
    return Path(command.build_lib, *prebuilt.FOLDER.parts[-3:])


setup(cmdclass={"build_py": Build, "bdist_wheel": Wheel}, distclass=Package)
