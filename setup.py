"""The compiled extensions; everything else is static in pyproject.toml.

Two environment switches, both off by default:

DPDL_SANITIZE=1   the address and undefined-behaviour sanitizers, for tests only (.ci/sanitize builds and runs it)
DPDL_NATIVE=1     -march=native: faster on this machine, not portable, and not the same bits as a portable build
"""

import os
from glob import glob

import numpy
from Cython.Build import cythonize
from setuptools import Extension, setup

sanitize = os.environ.get("DPDL_SANITIZE") == "1"
native = os.environ.get("DPDL_NATIVE") == "1"

# Never -ffast-math: it voids compensated sums and NaN checks. -ffp-contract=off keeps the bits the same on
# machines whose compiler would otherwise fuse multiplications into additions.
flags = [] if os.name == "nt" else ["-O3", "-ffp-contract=off", *(["-march=native"] if native else [])]
sanitizers = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-g"] if sanitize else []


def extension(name: str) -> Extension:
    return Extension(
        f"dpdl.{name}",
        [f"src_cython/{name}.pyx"],
        include_dirs=[numpy.get_include()],
        define_macros=[("NPY_NO_DEPRECATED_API", "NPY_1_7_API_VERSION")],
        # Without it exp and log are bound to their oldest versions in libm, which are wrapped, not to the default ones.
        libraries=[] if os.name == "nt" else ["m"],
        extra_compile_args=[*flags, *sanitizers],
        extra_link_args=sanitizers,
        depends=sorted(glob("src_cython/*.px[di]")),
    )


setup(
    ext_modules=cythonize(
        [extension("_core"), extension("_planning"), extension("_kernels")],
        include_path=["src_cython"],
        build_dir="build",
        compiler_directives={
            "language_level": 3,
            "boundscheck": sanitize,
            "wraparound": False,
            "initializedcheck": sanitize,
            "cdivision": True,
        },
        force=True,
    ),
    # What is compiled depends on the switches, which no time stamp shows: always compile.
    options={"build_ext": {"force": True}},
)
